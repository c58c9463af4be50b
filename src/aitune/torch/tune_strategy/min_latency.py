"""The backend that answers a single call soonest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.torch.trial import Trial
from aitune.torch.tune_strategy.base import ListStrategy

if TYPE_CHECKING:
    from aitune.torch.bench import Bench

__all__ = ["MinLatencyStrategy"]


class MinLatencyStrategy(ListStrategy):
    """Tries all backends, and takes the one with the lowest latency at batch size 1, if it beats the original.

    The smallest batch size of the graph counts where that is not 1. Latency is that of typical calls (the median),
    compared in pairs with the original, and candidates that are equally quick are told apart as
    :class:`~aitune.torch.tune_strategy.MaxThroughputStrategy` does it.

    The search for a larger batch size is off. ``enable_find_max_batch_size(True)`` widens the range of batch sizes that
    the engine is built for and checked at; latency is compared at the smallest all the same.
    """

    find_batch_size_by_default = False
    measures_smallest = True
    wants_quickest = True

    def choose(self, bench: Bench) -> Trial:
        """Return the best accepted trial, or the original."""
        return self.best_of_all(bench) or bench.original()
