"""A race: pairs of blocks of two sides, measured until they decide or the means run out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aitune.torch.measure.block import BlockPlan, run_block
from aitune.torch.measure.interval import MedianInterval, median_interval
from aitune.torch.measure.looks import Looks
from aitune.torch.measure.paired_timing import Basis, Outcome
from aitune.torch.measure.profiling_config import ProfilingConfig
from aitune.torch.measure.rest import Rest
from aitune.torch.measure.slow_calls import ratio_of_totals, slow_by_chance
from aitune.torch.measure.stopwatch import Stopwatch

__all__ = ["Finding", "Pair", "Race", "Times"]

_TINY = 1e-12

_JITTER = 3

_CHANCE = 0.05
"""Probability, at most, that slow calls of the candidate are the machine's, where they are held against it."""

_STALLED = 1.5
"""Typical calls that gain this many times more than the quickest ones do gain it by the baseline's stalls."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call of each side."""

    candidate: float
    baseline: float

    @property
    def ratio(self) -> float:
        """Baseline over candidate; 1 if the clock saw neither of them take time."""
        return max(self.baseline, _TINY) / max(self.candidate, _TINY)


@dataclass(frozen=True)
class Pair:
    """What two neighbouring blocks, one of each side, showed.

    Attributes:
        typical: From the median of each block.
        mean: From the mean of each block.
        least: The least time of each side so far, this pair included.
    """

    typical: Times
    mean: Times
    least: Times


@dataclass(frozen=True)
class Finding:
    """What the pairs so far say.

    Attributes:
        times: Of each pair of blocks.
        basis: Which calls the times are of.
        interval: Of the median of the pairs' ratios.
        outcome: The decision that follows.
        stalled: Whether a gain was claimed by stalls of the baseline, which are no evidence for the candidate.
    """

    times: tuple[Times, ...]
    basis: Basis
    interval: MedianInterval
    outcome: Outcome
    stalled: bool = False


@dataclass(frozen=True)
class Race:
    """A comparison that is set up: what it runs, by which rules, and until when.

    Attributes:
        candidate: Does one pass of the workload; it wants to be faster.
        baseline: Does the same pass; it is what the candidate is held against.
        stopwatch: Measures both.
        config: Rules of the comparison.
        observe: Gets outputs of the candidate; None lets them go.
        end: Time on the stopwatch's clock by which the last pair is to be done.
    """

    candidate: Callable[[], object]
    baseline: Callable[[], object]
    stopwatch: Stopwatch
    config: ProfilingConfig
    observe: Callable[[object], None] | None
    end: float

    def run(self, rough: Times, threshold: float) -> Finding:
        """Measure pairs until a look decides whether the ratio reaches the threshold, or nothing is left.

        Both blocks of a pair have one plan, made for the slower side: with unlike numbers of calls, stalls
        would hit the blocks of one side more often, and two equal sides would no longer look equal. The plan
        follows the least times seen so far, since on a busy machine a first estimate can be wrong many times
        over.

        Args:
            rough: First estimate of a call's time.
            threshold: Ratio to reach.
        """
        looks = Looks.of(self.config)
        coin, rest = random.Random(self.config.seed), Rest(self.stopwatch.clock, self.config.idle_seconds)
        finding = Finding((), "typical calls", MedianInterval(0.0, rough.ratio, math.inf, 1.0), "undecided")
        pairs: list[Pair] = []
        spent = 0.0
        start = self.stopwatch.clock.now()
        for look, target in enumerate(looks.blocks):
            while len(pairs) < target and self._has_time(start, len(pairs), rough):
                pairs.append(self._run_pair(rough, coin, rest))
                rough = pairs[-1].least
            last = len(pairs) < target or target == looks.blocks[-1]
            if pairs:
                finding = _find(pairs, looks.confidence(look, spent, last=last), threshold, last=last)
                spent += 1 - finding.interval.confidence
            if last or finding.outcome != "undecided":
                break
        return finding

    def _has_time(self, start: float, done: int, rough: Times) -> bool:
        """Whether one more pair is expected to end in time; a pair is never broken off."""
        now = self.stopwatch.clock.now()
        calls = self._plan(rough).calls
        planned = 2 * self.config.idle_seconds + calls * (rough.candidate + rough.baseline)
        measured = (now - start) / done if done else 0.0
        settled = done >= self.config.min_blocks
        end = min(self.end, start + self.config.settle_seconds) if settled else self.end
        return now + max(planned, measured) <= end

    def _plan(self, rough: Times) -> BlockPlan:
        return BlockPlan.for_calls_of(max(rough.candidate, rough.baseline), self.config)

    def _run_pair(self, rough: Times, coin: random.Random, rest: Rest) -> Pair:
        candidate_first, plan = coin.random() < 0.5, self._plan(rough)
        if plan.dropped:
            # Blocks of one length would let calls that are slow at regular intervals fall on those that are not timed.
            plan = replace(plan, dropped=plan.dropped + coin.randrange(_JITTER))
        order = (self.candidate, self.baseline) if candidate_first else (self.baseline, self.candidate)
        blocks = [run_block(call, plan, self.stopwatch, rest) for call in order]
        ours, theirs = blocks if candidate_first else reversed(blocks)
        if self.observe is not None:
            # After both blocks: between them it would disturb the second one, whichever side that is.
            for output in ours.outputs:
                self.observe(output)
        return Pair(
            typical=Times(ours.typical, theirs.typical),
            mean=Times(ours.mean, theirs.mean),
            least=Times(min(ours.least, rough.candidate), min(theirs.least, rough.baseline)),
        )


def _find(pairs: Sequence[Pair], confidence: float, threshold: float, *, last: bool) -> Finding:
    """Judge by typical calls; where they claim a gain that all calls together contradict, by all calls.

    A median does not see what every twentieth call costs: where the candidate alone has slow calls, the time of all
    calls decides, and more pairs are taken while that may be the machine.

    A gain must also show, more or less, in the quickest call of each side, to which a busy machine can only add:
    where the baseline's threads wait for processors that other programs hold, its typical call takes hundreds of times
    as long.
    """
    finding = _judge([pair.typical for pair in pairs], "typical calls", confidence, threshold)
    if finding.outcome != "faster":
        return finding
    veto = _judge([pair.mean for pair in pairs], "all calls", confidence, threshold)
    if veto.outcome == "not_faster":
        return veto
    candidate, baseline = ([getattr(pair.mean, side) for pair in pairs] for side in ("candidate", "baseline"))
    chance = slow_by_chance(candidate, baseline)
    if chance < (_CHANCE if last else 1.0):
        totals, outcome = _decided(ratio_of_totals(baseline, candidate, confidence), threshold)
        if totals.median < threshold:
            return Finding(veto.times, "all calls", totals, outcome if chance < _CHANCE else "undecided")
    return _without_stalls(finding, pairs[-1].least.ratio, threshold)


def _without_stalls(finding: Finding, quickest: float, threshold: float) -> Finding:
    """Return a gain, cut down to that of the quickest calls where the baseline's stalls claimed most of it."""
    if finding.interval.median <= _STALLED * quickest:
        return finding
    low, high = finding.interval.low, finding.interval.high
    interval = replace(finding.interval, low=min(low, quickest), median=quickest, high=max(high, quickest))
    if quickest >= _STALLED * threshold:  # the rest is stalls, but what is left is a gain beyond doubt
        return replace(finding, interval=interval)
    return replace(finding, interval=interval, outcome="undecided", stalled=True)


def _judge(times: Sequence[Times], basis: Basis, confidence: float, threshold: float) -> Finding:
    return Finding(
        tuple(times), basis, *_decided(median_interval([pair.ratio for pair in times], confidence), threshold)
    )


def _decided(interval: MedianInterval, threshold: float) -> tuple[MedianInterval, Outcome]:
    if interval.low >= threshold:
        return interval, "faster"
    return interval, "not_faster" if interval.high < threshold else "undecided"
