"""What a paired comparison found: the speedup, its interval, and the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Basis", "End", "Outcome", "PairedTiming"]

Basis = Literal["typical calls", "all calls"]
"""Which times the figures are of: medians within the blocks, or means, where means contradicted a gain."""

Outcome = Literal["faster", "not_faster", "undecided"]
"""Whether the interval of the speedup is at or above the threshold, below it, or on both sides of it."""

End = Literal["decided", "blocks", "seconds"]
"""Why a comparison ended: the interval decided, or the most pairs, or the time was used up."""


@dataclass(frozen=True, kw_only=True)
class PairedTiming:
    """The evidence of one comparison of a candidate with a baseline; plain data.

    Attributes:
        speedup: Baseline time over candidate time: the median over the pairs of blocks. Without a single pair
            (no time left) the ratio of the rough times of the warm-up.
        low: Lower end of the speedup's confidence interval; 0 when there were too few pairs for one.
        high: Upper end; infinite when there were too few pairs.
        confidence: Of the interval, all looks at the data together.
        basis: Which times the figures are of: each block's median call, or its mean where that voided a gain.
        blocks: Pairs of blocks measured.
        fewest_blocks: Pairs without which no interval has that confidence.
        candidate_seconds: Time of one call of the candidate, the median over its blocks, in seconds.
        baseline_seconds: Time of one call of the baseline, the median over its blocks, in seconds.
        outcome: The decision against ``1 + min_gain``.
        min_gain: Gain that was asked for, as a ratio.
        spread: Relative distance between the quartiles of the pairs' ratios.
        busy: Whether the interval stayed open because the machine was too busy, as the spread shows.
        ended: Why no further pair was measured.
        seconds: How long the comparison took, in seconds.
    """

    speedup: float
    low: float
    high: float
    confidence: float
    basis: Basis
    blocks: int
    fewest_blocks: int
    candidate_seconds: float
    baseline_seconds: float
    outcome: Outcome
    min_gain: float
    spread: float
    busy: bool
    ended: End
    seconds: float

    @property
    def reason(self) -> str:
        """The decision and what it rests on, in a sentence for reports and logs."""
        if self.blocks < self.fewest_blocks:
            return f"undecided: time for {self.blocks} pairs of blocks only, {self.fewest_blocks} are needed"
        figures = (
            f"{self.speedup:.3g} times the baseline's speed in {self.basis},"
            f" {100 * self.confidence:.4g}% confidence interval {self.low:.3g} to {self.high:.3g}"
            f" from {self.blocks} pairs of blocks"
        )
        if self.outcome == "faster":
            return f"faster: {figures}"
        if self.outcome == "not_faster":
            return f"not faster by {self.min_gain:.2%}: {figures}"
        if self.busy:
            return f"undecided: the machine is too busy, ratios scatter by {self.spread:.0%}; {figures}"
        return f"undecided: too close to a gain of {self.min_gain:.2%} to tell; {figures}"
