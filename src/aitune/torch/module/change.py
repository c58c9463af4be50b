"""Whether a module is still the one that its engines were made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from aitune.torch.graph.accessor import Names, compiled
from aitune.torch.module.drift import EVERY, DriftWatch
from aitune.torch.module.weights import StateWatch

__all__ = ["ChangeWatch", "turns"]

_LOOK, _ANSWER = 1, 2
_SOON = 8  # calls between two looks at whether a device has answered


class ChangeWatch:
    """Holds a module against what it was when its engines were validated.

    Args:
        module: The module as it was then.
        frozen: Whether an engine has weights of its own; without, nothing but what a call itself compares matters.

    Attributes:
        state: What every call compares.
        frozen: As given.
    """

    def __init__(self, module: torch.nn.Module, *, frozen: bool) -> None:
        self.state = StateWatch(module)
        self.frozen = frozen
        self._drift = DriftWatch(module) if frozen else None
        self._unchanged = _compiled(self.state) if frozen else None

    @classmethod
    def of_nothing(cls) -> ChangeWatch:
        """Return one that holds nothing alive and sees nothing."""
        return cls(torch.nn.Module(), frozen=False)

    def look(self, turn: int) -> bool:
        """Whether something is seen to be different, at one of the ``turns``; never waits for a device."""
        drift = self._drift
        return drift is not None and (drift.answer() or (turn == _LOOK and drift.glance()))

    @property
    def shows(self) -> bool:
        """Whether a change shows, told as quickly as the check of a call does."""
        return self._unchanged is not None and not self._unchanged()

    @property
    def drifted(self) -> bool:
        """Whether something is different that a call does not compare; waits for the device."""
        return self._drift is not None and self._drift.changed

    @property
    def changed(self) -> bool:
        """Whether anything at all is different; waits for the device."""
        return self._drift is not None and (self.state.changed or self._drift.changed)

    @property
    def spoiled(self) -> bool:
        """Whether a tensor itself is another, which is for good; waits for the device."""
        return self.state.spoiled or (self._drift is not None and self._drift.spoiled)

    @property
    def rewritten(self) -> bool:
        """Whether nothing but the contents of tensors can be different."""
        return self._drift is not None and not self._drift.rebuilt and self.state.rewritten


def turns() -> Iterator[int]:
    """Return what tells, call by call and for any thread, whether to look for changes: 0 for not now."""
    return itertools.cycle([_LOOK if i == 0 else _ANSWER if i % _SOON == 0 else 0 for i in range(EVERY)])


def _compiled(watch: StateWatch) -> Callable[[], bool]:
    names = Names()
    condition = watch.condition(names)
    unchanged = compiled("unchanged", "", [f"return {condition}"], names)

    def answer() -> bool:
        try:
            return bool(unchanged())
        except (AttributeError, KeyError, RuntimeError):  # a tensor or child that is no longer there
            return False

    return answer
