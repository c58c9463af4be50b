"""The rules of a trial: what a strategy asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from aitune.torch.check.check import Check
from aitune.torch.measure import DEFAULT_MIN_GAIN, ProfilingConfig

__all__ = ["Rules"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a candidate must show.

    Attributes:
        min_speedup_ratio: Gain over the original, as a ratio, that a candidate must show.
        profiling: How speed is measured.
        check: How outputs are judged; None judges values by the declared precision.
        correctness: Whether values are checked at all.
        performance: Whether a candidate must beat the original.
        find_batch_size: Whether the batch size with the best throughput is searched for.
        smallest: Whether speed is measured at the smallest batch size, for latency, instead of the best or largest.
        quickest: Whether only the quickest candidate is wanted, so that one that is clearly behind another in the
            worker need not be brought into this process.
        latency_budget: Seconds that 99 of 100 calls may take; then throughput counts at the best batch size within it,
            for each candidate its own. None for no budget.
        time_limit: Seconds after which no further candidate is begun; None for no limit.
    """

    min_speedup_ratio: float = DEFAULT_MIN_GAIN
    profiling: ProfilingConfig = field(default_factory=ProfilingConfig)
    check: Check | None = None
    correctness: bool = True
    performance: bool = True
    find_batch_size: bool = True
    smallest: bool = False
    quickest: bool = False
    latency_budget: float | None = None
    time_limit: float | None = None
