"""Modules, recordings and dispatchers for tests of the module room."""

from __future__ import annotations

import functools

import pytest
import torch

from aitune.torch.backend.base import Engine
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.dispatch import Dispatcher, Served
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.slot import Slot, current


class FunctionEngine(Engine):
    """An engine that is a function."""

    def __init__(self, function, *, live_weights=False, reentrant=True, own_errors=False):
        self.function, self.live_weights, self.reentrant, self.own_errors = (
            function,
            live_weights,
            reentrant,
            own_errors,
        )
        self.calls = 0
        self.closed = False

    def run(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)

    def close(self):
        self.closed = True


@pytest.fixture
def engine_of():
    """Make an engine of a function."""
    return FunctionEngine


@pytest.fixture
def recorded():
    """Record calls of a module and return the graphs: ``recorded(module, [(batch_size, args, kwargs), ...])``."""

    def record(module, calls):
        slot = Slot(module, current(module))
        recording = Recording(CallSignature.of(module.forward))
        slot.install(functools.partial(recording.call, slot))
        with torch.no_grad():
            for batch_size, args, kwargs in calls:
                with batch_of(batch_size):
                    module(*args, **kwargs)
        slot.remove()
        return [seen.graph(f"graph{i}", recording.signature) for i, seen in enumerate(recording.observations)]

    return record


@pytest.fixture
def install():
    """Put engines in front of a module: ``install(module, (graph, engine), ...)``; returns the dispatcher."""
    slots = []

    def put(module, *pairs):
        slot = Slot(module, current(module))
        served = [Served(graph, engine, f"Fake{i}()") for i, (graph, engine) in enumerate(pairs)]
        dispatcher = Dispatcher("model", slot, served)
        slot.install(dispatcher.call)
        slots.append(slot)
        return dispatcher

    yield put
    for slot in slots:
        slot.remove()
