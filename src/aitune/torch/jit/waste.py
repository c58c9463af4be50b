"""Tunes that were for nothing: their modules went before they were called often enough to pay."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch

from aitune.torch.module.stats import Stats

__all__ = ["Waste"]

_PAYS = 100
"""Calls of a tuned module below which its tune, which took seconds, cannot have paid."""

_SOON = 300.0
"""Seconds after which a module that goes did not go soon, however often it was called."""


class Waste:
    """Counts, for each class, heads that went soon after they were tuned: copies, or one model after another.

    Keeps no module alive.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew, also for modules that were tuned before and go later."""
        self._counts: dict[str, int] = {}

    def of(self, path: str) -> int:
        """Return how many heads of a class went too soon."""
        return self._counts.get(path, 0)

    def watch(self, module: torch.nn.Module, path: str, read: Callable[[], Stats] = Stats) -> None:
        """Take note when a head that was just tuned, or something below it, goes.

        Args:
            module: The head.
            path: Its class.
            read: Tells how often what was tuned was called since; without it the tune found nothing, and never pays.
        """
        weakref.finalize(module, _went, self._counts, path, read, time.monotonic()).atexit = False


def _went(counts: dict[str, int], path: str, read: Callable[[], Stats], tuned_at: float) -> None:
    if read().calls < _PAYS and time.monotonic() - tuned_at < _SOON:
        counts[path] = counts.get(path, 0) + 1
