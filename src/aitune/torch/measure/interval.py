"""The confidence interval of a median, from order statistics: no assumption about the shape of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MedianInterval", "fewest_values", "median_interval"]


@dataclass(frozen=True)
class MedianInterval:
    """A median and the interval that holds the true one.

    Attributes:
        low: Lower end; 0 when there were too few values for the confidence asked for.
        median: Of the values; the geometric mean of the middle two when their number is even.
        high: Upper end; infinite when there were too few values.
        confidence: Probability, at least, that the interval holds the true median: what was asked for or
            somewhat more, since order statistics come in steps; 1 for the unbounded interval.
    """

    low: float
    median: float
    high: float
    confidence: float


def median_interval(ratios: Sequence[float], confidence: float) -> MedianInterval:
    """Bound the median of a population of positive ratios by two of its order statistics.

    With the values sorted, the true median lies below the k-th smallest only if fewer than k of n values fall
    on its lower side, which has probability ``P(B < k)`` for B binomial(n, 1/2); likewise above the k-th
    largest. The largest k with ``2 P(B < k) <= 1 - confidence`` is taken (David and Nagaraja, *Order
    Statistics*, 3rd edition, section 7.1; the interval is the inversion of the sign test). The ends of the
    interval are values, so it means the same for ratios and for their logarithms.

    Args:
        ratios: Positive values, independent draws; at least one.
        confidence: At least 0.5 and below 1.

    Raises:
        ValueError: If there are no values or the confidence is out of range.
    """
    if not ratios:
        raise ValueError("median_interval needs at least one value")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence must be at least 0.5 and below 1, not {confidence!r}")
    ordered = sorted(ratios)
    count = len(ordered)
    median = _middle(ordered)
    rank, error = _rank(count, 1 - confidence)
    if rank == 0:
        return MedianInterval(low=0.0, median=median, high=math.inf, confidence=1.0)
    return MedianInterval(low=ordered[rank - 1], median=median, high=ordered[count - rank], confidence=1 - error)


def fewest_values(confidence: float) -> int:
    """Smallest number of values whose smallest and largest bound the median with ``confidence``.

    Their interval misses with probability ``2 / 2**n``.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def _rank(count: int, error: float) -> tuple[int, float]:
    """Find the largest k with two-sided error ``2 P(Binomial(count, 1/2) < k) <= error``, and that error.

    Whole numbers up to the division: exact for any count, where floating-point factorials would overflow.
    """
    rank, below = 0, 1  # ``below`` counts the outcomes, of 2**count, with at most ``rank`` successes
    reached = 0.0
    while 2 * below / 2**count <= error:
        reached = 2 * below / 2**count
        rank += 1
        below += math.comb(count, rank)
    return rank, reached


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    low, high = ordered[half - 1], ordered[half]
    # The square root of the product may round past its two factors when they are all but equal.
    return min(max(math.sqrt(low) * math.sqrt(high), low), high)
