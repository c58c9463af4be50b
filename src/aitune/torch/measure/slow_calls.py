"""Slow calls of one side: a candidate may be quick mostly, and now and then so slow that nothing is gained."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from aitune.torch.measure.interval import MedianInterval

__all__ = ["ratio_of_totals", "slow_by_chance"]

_SLOW = 1.5
"""How many times the lower quartile of its side a block's mean is at least, for it to count as slow."""

_RESAMPLES = 400


def slow_by_chance(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """Return how probable it is that a machine, which stalls both sides alike, stalls the candidate so much more often.

    Args:
        candidate: Mean time of a call in each of its blocks.
        baseline: The same of the other side, measured in turn.

    Returns:
        A probability; 1 where the candidate's blocks were not slow more often.
    """
    ours, theirs = _slow_blocks(candidate), _slow_blocks(baseline)
    if ours <= theirs:
        return 1.0
    return sum(math.comb(ours + theirs, count) for count in range(ours, ours + theirs + 1)) / 2.0 ** (ours + theirs)


def ratio_of_totals(baseline: Sequence[float], candidate: Sequence[float], confidence: float) -> MedianInterval:
    """Return how many times longer all of the baseline's blocks took than the candidate's, by the bootstrap.

    Args:
        baseline: Mean time of a call in each of its blocks.
        candidate: The same of the candidate, measured in turn.
        confidence: Probability that the interval holds the true ratio.
    """
    draw = random.Random(len(baseline))
    pairs = list(zip(baseline, candidate, strict=True))
    ratios = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    outside = math.floor((1 - confidence) / 2 * _RESAMPLES)
    ratio = _ratio(pairs)
    return MedianInterval(min(ratio, ratios[outside]), ratio, max(ratio, ratios[-1 - outside]), confidence)


def _slow_blocks(times: Sequence[float]) -> int:
    limit = _SLOW * sorted(times)[len(times) // 4]  # slow blocks may be more than half of them
    return sum(time >= limit for time in times)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return math.fsum(pair[0] for pair in pairs) / max(math.fsum(pair[1] for pair in pairs), 1e-12)
