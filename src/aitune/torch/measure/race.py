"""A race: pairs of blocks of two sides, measured until they decide or the means run out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aitune.torch.measure.block import Side
from aitune.torch.measure.interval import MedianInterval, median_interval
from aitune.torch.measure.looks import Looks
from aitune.torch.measure.paired_timing import Basis, Outcome
from aitune.torch.measure.profiling_config import ProfilingConfig
from aitune.torch.measure.stopwatch import Stopwatch

__all__ = ["Finding", "Race", "Times"]

_TINY = 1e-12


@dataclass(frozen=True)
class Times:
    """Seconds of one call of each side, from neighbouring blocks."""

    candidate: float
    baseline: float

    @property
    def ratio(self) -> float:
        """Baseline over candidate; 1 if the clock saw neither of them take time."""
        return max(self.baseline, _TINY) / max(self.candidate, _TINY)


@dataclass(frozen=True)
class Finding:
    """What the pairs so far say.

    Attributes:
        times: Of each pair of blocks.
        basis: Which calls the times are of.
        interval: Of the median of the pairs' ratios.
        outcome: The decision that follows.
    """

    times: tuple[Times, ...]
    basis: Basis
    interval: MedianInterval
    outcome: Outcome


@dataclass(frozen=True)
class Race:
    """A comparison that is set up: what it runs, by which rules, and until when.

    Attributes:
        candidate: The side that wants to be faster.
        baseline: The side that it is held against.
        stopwatch: Measures both.
        config: Rules of the comparison.
        observe: Gets outputs of the candidate; None lets them go.
        end: Time on the stopwatch's clock by which the last pair is to be done.
    """

    candidate: Side
    baseline: Side
    stopwatch: Stopwatch
    config: ProfilingConfig
    observe: Callable[[object], None] | None
    end: float

    def run(self, threshold: float) -> Finding:
        """Measure pairs until a look decides whether the ratio reaches the threshold, or nothing is left."""
        looks = Looks.of(self.config)
        coin = random.Random(self.config.seed)
        rough = Times(self.candidate.seconds, self.baseline.seconds).ratio
        finding = Finding((), "typical calls", MedianInterval(0.0, rough, math.inf, 1.0), "undecided")
        pairs: list[tuple[Times, Times]] = []
        spent = 0.0
        start = self.stopwatch.clock.now()
        for look, target in enumerate(looks.blocks):
            while len(pairs) < target and self._has_time(start, len(pairs)):
                pairs.append(self._run_pair(candidate_first=coin.random() < 0.5))
            last = len(pairs) < target or target == looks.blocks[-1]
            if pairs:
                finding = _find(pairs, looks.confidence(look, spent, last=last), threshold)
                spent += 1 - finding.interval.confidence
            if last or finding.outcome != "undecided":
                break
        return finding

    def _has_time(self, start: float, done: int) -> bool:
        """Whether one more pair is expected to end in time; a pair is never broken off."""
        now = self.stopwatch.clock.now()
        planned = 2 * self.config.idle_seconds + self.candidate.block_seconds + self.baseline.block_seconds
        measured = (now - start) / done if done else 0.0
        return now + max(planned, measured) <= self.end

    def _run_pair(self, *, candidate_first: bool) -> tuple[Times, Times]:
        """Run a block of each side; returns the times of typical calls and of all calls."""
        order = (self.candidate, self.baseline) if candidate_first else (self.baseline, self.candidate)
        blocks = [side.run_block(self.stopwatch, self.config.idle_seconds) for side in order]
        ours, theirs = blocks if candidate_first else reversed(blocks)
        if self.observe is not None:
            # After both blocks: between them it would disturb the second one, whichever side that is.
            for output in ours.outputs:
                self.observe(output)
        return Times(ours.typical, theirs.typical), Times(ours.mean, theirs.mean)


def _find(pairs: Sequence[tuple[Times, Times]], confidence: float, threshold: float) -> Finding:
    """Judge by typical calls; where they claim a gain that all calls together contradict, by all calls."""
    typical, mean = zip(*pairs, strict=True)
    finding = _judge(typical, "typical calls", confidence, threshold)
    if finding.outcome == "faster":
        veto = _judge(mean, "all calls", confidence, threshold)
        if veto.outcome == "not_faster":
            return veto
    return finding


def _judge(times: tuple[Times, ...], basis: Basis, confidence: float, threshold: float) -> Finding:
    interval = median_interval([pair.ratio for pair in times], confidence)
    outcome: Outcome = "undecided"
    if interval.low >= threshold:
        outcome = "faster"
    elif interval.high < threshold:
        outcome = "not_faster"
    return Finding(times, basis, interval, outcome)
