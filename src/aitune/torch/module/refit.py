"""Engines that take over weights that changed, once those stay as they are and the module itself answers the same."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aitune.exceptions import FOREIGN, text_of
from aitune.torch.backend.base import Engine
from aitune.torch.backend.state import state_of
from aitune.torch.check.spot import difference
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.tree import flatten
from aitune.torch.module.change import ChangeWatch

__all__ = ["Refitter"]

_log = logging.getLogger(__name__)


class Refitter:
    """Has the engines of a module take over its weights.

    Args:
        name: The module's name, for the log.
        module: The module.
        original: Its forward.
        engines: Each engine that holds weights of its own, with its graph and what it is called, by its index; each
            can take others.

    Attributes:
        unproven: Indices of engines that took over weights and did not answer a call as the module does yet.
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        original: Callable[..., Any],
        engines: Mapping[int, tuple[Engine, GraphSpec, str]],
    ) -> None:
        self._name = name
        self._module = module
        self._original = original
        self._engines = engines
        self._watch: ChangeWatch | None = None
        self._busy = threading.Lock()
        self.unproven: set[int] = set()

    @classmethod
    def of(
        cls,
        name: str,
        module: torch.nn.Module,
        original: Callable[..., Any],
        engines: Sequence[tuple[Engine, GraphSpec, str]],
    ) -> Refitter | None:
        """Return a refitter, None where an engine with weights of its own cannot take others."""
        frozen = {i: one for i, one in enumerate(engines) if not one[0].live_weights}
        able = bool(frozen) and all(engine.refits for engine, _, _ in frozen.values())
        return cls(name, module, original, frozen) if able else None

    def settled(self) -> bool:
        """Whether nothing has changed since this was asked last; waits for the device that weights are on."""
        if self._watch is not None and not self._watch.changed:
            return True
        self._watch = ChangeWatch(self._module, frozen=True)
        return False

    def take_over(self) -> str | None:
        """Give the engines the present weights; none may answer a call before it is proven.

        Returns:
            Why it failed, after which no engine is of use any more; None if they have them. Empty if another thread is
            at it.
        """
        if not self._busy.acquire(blocking=False):
            return ""
        try:
            started = time.perf_counter()
            state = state_of(self._module)
            backend = ""
            try:
                for engine, _, backend in self._engines.values():  # noqa: B007 - named where one fails
                    engine.refit(state)
            except FOREIGN as error:
                return f"{backend} does not take over the changed weights: {text_of(error)}"
            if not self.settled():
                return ""
            self.unproven = set(self._engines)
            took = time.perf_counter() - started
            _log.info("%s: its engines took over changed weights in %.2f s", self._name, took)
            return None
        finally:
            self._busy.release()

    def completed(self) -> bool:
        """Whether the weights are still those that were taken over; to be asked once they are watched from then on."""
        still, self._watch = self.settled(), None
        return still

    def prove(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str | None]:
        """Answer a call by the module itself, and hold an engine that was made for it against that.

        Nothing else of the process is looked at or touched: other threads go on meanwhile.

        Returns:
            The module's answer; and why the engine may not be used any more, None if it may be, empty if another thread
            is at it.

        Raises:
            Exception: What the module itself raises.
        """
        if not self._busy.acquire(blocking=False):
            return self._original(*args, **kwargs), ""
        try:
            if index not in self.unproven:
                return self._original(*args, **kwargs), ""
            engine, graph, backend = self._engines[index]
            fresh, error = Sample(args, kwargs).fresh(), None
            try:
                got = engine.run(*fresh.args, **fresh.kwargs)
            except FOREIGN as raised:
                got, error = None, raised
            wanted = self._original(*args, **kwargs)
            if error is not None:
                return wanted, f"{backend} fails with changed weights: {text_of(error)}"
            inputs = (flatten((fresh.args, fresh.kwargs))[0], flatten((args, kwargs))[0]) if graph.mutates else ((), ())
            problem = difference((got, *inputs[0]), (wanted, *inputs[1]), engine.precision)
            if problem is not None:
                return wanted, f"{backend} does not compute with changed weights what the module does: {problem}"
            self.unproven.discard(index)
            return wanted, None
        finally:
            self._busy.release()
