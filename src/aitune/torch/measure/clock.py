"""Time, behind one small interface, so that everything that decides by time can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """A clock that never goes backwards, and a way to let time pass on it.

    ``aitune.testing.clock.FakeClock`` is one whose time moves only by fake work.
    """

    def now(self) -> float:
        """Seconds since a fixed but unknown moment."""

    def sleep(self, seconds: float) -> None:
        """Let at least ``seconds`` pass on this clock."""

    def used(self) -> float:
        """Seconds of processor time that all threads of the process have taken so far."""


class SystemClock:
    """The clock of the machine, at the best resolution that Python offers. Thread-safe: it holds nothing."""

    def now(self) -> float:
        """Seconds of ``time.perf_counter``."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Give the processor away for ``seconds``."""
        time.sleep(seconds)

    def used(self) -> float:
        """Seconds of ``time.process_time``."""
        return time.process_time()
