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
        best: Trial | None = None
        for backend in self.candidates(bench.device):
            trial = bench.try_(backend)
            if trial.accepted:
                best = trial if best is None else bench.best([best, trial])
                bench.close_losers(keep=best)
        return best if best is not None else bench.original()
