"""The backend with the highest throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.torch.trial import Trial
from aitune.torch.tune_strategy.base import ListStrategy

if TYPE_CHECKING:
    from aitune.torch.bench import Bench

__all__ = ["MaxThroughputStrategy"]


class MaxThroughputStrategy(ListStrategy):
    """Tries all backends, and takes the one with the highest throughput, if it beats the original.

    With ``enable_performance_validation(False)`` the fastest correct backend is taken, faster than the original or not.
    Between backends within noise of each other the choice is stable; see
    :func:`aitune.torch.measure.preferred`.
    """

    wants_quickest = True

    def choose(self, bench: Bench) -> Trial:
        """Return the best accepted trial, or the original."""
        return self.best_of_all(bench) or bench.original()
