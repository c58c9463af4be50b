"""Modules, recordings and dispatchers for tests of the module room."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend
from aitune.torch.backend.base import Engine
from aitune.torch.graph.job import Job
from aitune.torch.graph.signature import CallSignature
from aitune.torch.measure import ProfilingConfig
from aitune.torch.module.dispatch import Dispatcher
from aitune.torch.module.plan import plan_graphs
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.served import Served
from aitune.torch.module.slot import Slot, current
from aitune.torch.module.tune_module import OriginalEngine
from aitune.torch.worker import build_here


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


QUICK = ProfilingConfig(
    block_calls=1,
    block_seconds=0.001,
    idle_seconds=0,
    warmup_calls=1,
    dropped_seconds=0,
    max_blocks=20,
    settle_seconds=0.02,
    max_seconds=2,
)


@pytest.fixture
def quick():
    """How speed is measured where it does not matter."""
    return QUICK


class Frozen(FunctionBackend):
    """Its engines are copies of the module as it was: a change that is not noticed gives a wrong answer."""

    def __init__(self):
        super().__init__(lambda job: copy.deepcopy(job.module)._call_impl)


@pytest.fixture
def frozen():
    """The backend whose engines are copies."""
    return Frozen()


@pytest.fixture
def serve(tmp_path):
    """Put a backend's engines in front of a module without any trial: ``serve(module, backend, call, ...)``.

    Returns the handle, as after a tune. A call is a tensor or a tuple of arguments.
    """
    handles = []

    def do(module, backend, *calls):
        handle = ait.handle(ait.Module(module, "model", ait.OneBackendStrategy(backend)))
        _record(handle, calls)
        slot = handle._slot()
        served = []
        for entry in plan_graphs("model", handle._recording, {}):
            job = Job("model", module, entry.graph, entry.samples, torch.device("cpu"), tmp_path, tmp_path / "log")
            engine = OriginalEngine(slot) if entry.problem else built(backend, job)
            served.append(Served(entry.graph, engine, backend.describe()))
        slot.install(Dispatcher("model", slot, served).call)
        handle._state = ait.ModuleState.TUNED
        handles.append(handle)
        return handle

    yield do
    for handle in handles:
        handle.untune()


def built(backend, job):
    made = build_here(backend, job)
    if made.engine is None:
        raise made.error
    return made.engine


def _record(handle, calls):
    handle.enable_recording()
    with torch.no_grad():
        for call in calls:
            args = call if isinstance(call, tuple) else (call,)
            with batch_of(len(args[0]) if torch.is_tensor(args[0]) and args[0].dim() else None):
                handle.module(*args)


@pytest.fixture
def tune():
    """Tune a module for good on some calls: ``tune(module, backend, call, ...)``; returns its handle.

    A call is a tensor or a tuple of arguments. No speed is asked for, and with ``correct=False`` no right values.
    """
    handles = []

    def do(module, backend, *calls, correct=True):
        strategy = ait.OneBackendStrategy(backend, profiling_config=QUICK)
        strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
        strategy.enable_correctness_check(correct)
        handle = ait.handle(ait.Module(module, "model", strategy))
        _record(handle, calls)
        handle.tune()
        handles.append(handle)
        return handle

    yield do
    for handle in handles:
        handle.untune()
