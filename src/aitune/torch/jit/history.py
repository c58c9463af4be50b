"""What just-in-time tuning did, as lines of text in order."""

from __future__ import annotations

import logging
import threading
from collections import deque

__all__ = ["History"]

_log = logging.getLogger(__name__)

_KEPT = 10_000


class History:
    """Steps in order; the oldest are forgotten beyond a bound. Safe for threads."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def add(self, line: str, level: int = logging.INFO) -> None:
        """Note a step, and log it."""
        with self._lock:
            self._lines.append(line)
        _log.log(level, "%s", line)

    def forget(self) -> None:
        """In a forked process, whose other threads stayed in the parent: begin anew."""
        self._lock = threading.Lock()  # one of those threads may have held it
        self._lines.clear()

    def lines(self) -> list[str]:
        """Return the steps so far."""
        with self._lock:
            return list(self._lines)

    def text(self) -> str:
        """Return the steps as the text of a list, one a line."""
        return "[" + ",\n ".join(map(repr, self.lines())) + "]"
