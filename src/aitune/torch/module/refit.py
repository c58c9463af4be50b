"""Engines that take over weights that changed, once those stay as they are and the module itself answers the same."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aitune.exceptions import FOREIGN, text_of
from aitune.torch.backend.state import state_of
from aitune.torch.check.spot import difference
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.tree import flatten
from aitune.torch.module.drift import DriftWatch
from aitune.torch.module.served import Served
from aitune.torch.module.weights import StateWatch

__all__ = ["Refitter"]

_log = logging.getLogger(__name__)


class Refitter:
    """Has the engines of a module take over its weights.

    Args:
        name: The module's name, for the log.
        module: The module.
        original: Its forward.
        served: What engines with weights of their own serve, by their indices; each engine can take other weights.

    Attributes:
        unproven: Indices of engines that took over weights and did not answer a call as the module does yet.
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        original: Callable[..., Any],
        served: Mapping[int, Served],
    ) -> None:
        self._name = name
        self._module = module
        self._original = original
        self._served = served
        self._watches: tuple[StateWatch, DriftWatch] | None = None
        self._busy = threading.Lock()
        self.unproven: set[int] = set()

    @classmethod
    def of(
        cls,
        name: str,
        module: torch.nn.Module,
        original: Callable[..., Any],
        served: Sequence[Served],
    ) -> Refitter | None:
        """Return a refitter, None where an engine with weights of its own cannot take others."""
        frozen = {i: one for i, one in enumerate(served) if not one.engine.live_weights}
        able = bool(frozen) and all(one.engine.refits for one in frozen.values())
        return cls(name, module, original, frozen) if able else None

    def settled(self) -> bool:
        """Whether nothing has changed since this was asked last; waits for the device that weights are on."""
        if self._watches is not None and not any(watch.changed for watch in self._watches):
            return True
        self._watches = StateWatch(self._module), DriftWatch(self._module)
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
            for one in self._served.values():
                try:
                    one.engine.refit(state)
                except FOREIGN as error:  # noqa: PERF203 - few engines, and the one that fails is named
                    return f"{one.backend} does not take over the changed weights: {text_of(error)}"
            if not self.settled():
                return ""
            self.unproven = set(self._served)
            took = time.perf_counter() - started
            _log.info("%s: its engines took over changed weights in %.2f s", self._name, took)
            return None
        finally:
            self._busy.release()

    def completed(self) -> bool:
        """Whether the weights are still those that were taken over; to be asked once they are watched from then on."""
        still, self._watches = self.settled(), None
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
            one = self._served[index]
            fresh, error = Sample(args, kwargs).fresh(), None
            try:
                got = one.engine.run(*fresh.args, **fresh.kwargs)
            except FOREIGN as raised:
                got, error = None, raised
            wanted = self._original(*args, **kwargs)
            if error is not None:
                return wanted, f"{one.backend} fails with changed weights: {text_of(error)}"
            inputs = (
                (flatten((fresh.args, fresh.kwargs))[0], flatten((args, kwargs))[0]) if one.graph.mutates else ((), ())
            )
            problem = difference((got, *inputs[0]), (wanted, *inputs[1]), one.engine.precision)
            if problem is not None:
                return wanted, f"{one.backend} does not compute with changed weights what the module does: {problem}"
            self.unproven.discard(index)
            return wanted, None
        finally:
            self._busy.release()
