"""The calls that went to the original: counted by reason, and each reason logged once."""

from __future__ import annotations

import logging
import threading

from aitune.torch.module.miss import Miss

__all__ = ["Misses"]

_log = logging.getLogger(__name__)
_WARNED = ("weights changed", "engine failed")


class Misses:
    """Counts misses of one module; any thread may.

    Args:
        name: The module's name, for the log.

    Attributes:
        counts: Calls by reason; follows the counting.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self.counts: dict[str, int] = {}

    def count(self, miss: Miss) -> None:
        """Count a miss, and log it if it is the first for its reason."""
        with self._lock:
            first = miss.reason not in self.counts
            self.counts[miss.reason] = self.counts.get(miss.reason, 0) + 1
        if first:
            level = logging.WARNING if miss.reason in _WARNED else logging.INFO
            detail = f" ({miss.detail})" if miss.detail else ""
            _log.log(level, "%s: the original answers: %s%s", self._name, miss.reason, detail)

    def copy(self) -> dict[str, int]:
        """Return the counts as they are now."""
        with self._lock:
            return dict(self.counts)

    def clear(self) -> None:
        """Count from zero again, and log every reason anew."""
        with self._lock:
            self.counts.clear()

    def forked(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
