"""Counts of where calls went."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

__all__ = ["Stats", "Tally"]


@dataclass(frozen=True)
class Stats:
    """Where the calls of a tuned module went, since it was tuned.

    Attributes:
        engine_calls: Calls answered by an engine, by the backend's description.
        fallbacks: Calls answered by the original, by reason.
    """

    engine_calls: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """All calls."""
        return sum(self.engine_calls.values()) + sum(self.fallbacks.values())


class Tally:
    """A counter that costs one C call and needs no lock: ``next`` on an ``itertools.count`` is atomic under the GIL."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._start = 0
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """How often ``add`` was called since the last reset."""
        return self._read() - self._start

    def reset(self) -> None:
        """Count from zero again."""
        self._start = self._read()

    def _read(self) -> int:
        return int(repr(self._count)[len("count(") : -1])  # the one way that does not advance it
