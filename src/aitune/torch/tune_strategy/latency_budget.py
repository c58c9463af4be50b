"""The most throughput that is to be had within a latency."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aitune.exceptions import AITuneUserInputError, LatencyBudgetError
from aitune.torch.backend import Backend
from aitune.torch.trial import Trial
from aitune.torch.tune_strategy.base import ListStrategy

if TYPE_CHECKING:
    from aitune.torch.bench import Bench

__all__ = ["LatencyBudgetStrategy"]


class LatencyBudgetStrategy(ListStrategy):
    """Tries all backends, each at every batch size, and takes the highest throughput within a latency budget.

    A batch size counts if 99 of 100 calls take no longer than the budget (of the slowest kind of call, where recorded
    calls differ in other sizes). The original takes part: a backend has to beat the highest throughput that the
    original has within the budget, unless ``enable_performance_validation(False)`` was called or the original is not
    within it at all. A trial's batch size is the one to call the module with; other sizes are served as well.

    Args:
        latency_budget_ms: The budget, in milliseconds.
        backends: Candidates in order; None takes those that the project lists for the device.
        options: As :class:`~aitune.torch.tune_strategy.base.TuneStrategy`.

    Raises:
        AITuneUserInputError: If an argument cannot be used.
    """

    def __init__(
        self, latency_budget_ms: float, backends: Iterable[Backend[Any]] | None = None, **options: Any
    ) -> None:
        super().__init__(backends, **options)
        number = isinstance(latency_budget_ms, (int, float)) and not isinstance(latency_budget_ms, bool)
        if not number or not 0 < latency_budget_ms < math.inf:
            raise AITuneUserInputError(f"latency_budget_ms must be milliseconds above 0, not {latency_budget_ms!r}")
        self.latency_budget_ms = float(latency_budget_ms)
        self.latency_budget = self.latency_budget_ms / 1e3

    def choose(self, bench: Bench) -> Trial:
        """Return the best accepted trial, or the original where that is within the budget.

        Raises:
            LatencyBudgetError: If nothing is, with what came nearest.
        """
        best = self.best_of_all(bench)
        if best is not None:
            return best
        budget = bench.latency_budget
        assert budget is not None
        if budget.original_fits:
            return bench.original()
        name, at = budget.nearest
        raise LatencyBudgetError(self.latency_budget_ms, name, at.p99 * 1e3, at.workload.batch_size)

    def _describe_candidates(self) -> list[str]:
        return [f"latency_budget_ms={self.latency_budget_ms:g}", *super()._describe_candidates()]
