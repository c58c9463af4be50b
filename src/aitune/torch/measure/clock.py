"""Time, behind one small interface, so that everything that decides by time can be tested without waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "SystemClock"]

_THREADS = Path("/proc/self/task")
_A_MOMENT = 0.002  # seconds


class Clock(Protocol):
    """A clock that never goes backwards, and a way to let time pass on it.

    ``aitune.testing.clock.FakeClock`` is one whose time moves only by fake work.
    """

    def now(self) -> float:
        """Seconds since a fixed but unknown moment."""

    def sleep(self, seconds: float) -> None:
        """Let at least ``seconds`` pass on this clock."""

    def others_run(self) -> bool:
        """Whether another thread of the process is running at this moment."""


class SystemClock:
    """The clock of the machine, at the best resolution that Python offers. Thread-safe: it holds nothing."""

    def now(self) -> float:
        """Seconds of ``time.perf_counter``."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Give the processor away for ``seconds``."""
        time.sleep(seconds)

    def others_run(self) -> bool:
        """Ask the system for the state of each thread; where it does not tell, whether they take processor time.

        The processor time of the process would not do on Linux: that of a thread that runs is brought up to date when
        its time slice ends, up to ten milliseconds later.
        """
        if _THREADS.is_dir():
            mine = str(threading.get_native_id())
            return any(_state(thread) == "R" for thread in _THREADS.iterdir() if thread.name != mine)
        used = time.process_time()
        self.sleep(_A_MOMENT)
        return time.process_time() - used > _A_MOMENT / 2


def _state(thread: Path) -> str:
    """Return the state of a thread as proc(5) has it: behind the name, which may hold anything, in parentheses."""
    try:
        return (thread / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:  # it has just ended
        return ""
