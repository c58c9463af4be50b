"""The comparison of two callables in one process, in alternating blocks of calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from aitune.torch.measure.block import seconds_per_call
from aitune.torch.measure.interval import fewest_values
from aitune.torch.measure.paired_timing import PairedTiming
from aitune.torch.measure.profiling_config import DEFAULT_MIN_GAIN, ProfilingConfig
from aitune.torch.measure.race import Race, Times
from aitune.torch.measure.stopwatch import Stopwatch

__all__ = ["compare"]


def compare(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    stopwatch: Stopwatch | None = None,
    config: ProfilingConfig | None = None,
    min_gain: float = DEFAULT_MIN_GAIN,
    observe: Callable[[object], None] | None = None,
) -> PairedTiming:
    """Decide whether the candidate is faster than the baseline by ``min_gain`` or more.

    Blocks of the two sides alternate in pairs, each pair in an order drawn by a fair coin, and the decision
    rests on the ratio of the two blocks of each pair. The coin is what makes the error probability hold on
    any machine: if both sides are the same, swapping them within a pair inverts its ratio, so each ratio is
    as likely above 1 as below, whatever drifts, bursts or clock ramps do to the times, and the interval of
    the median assumes no more than that. Pairs are added until the interval is on one side of ``1 +
    min_gain``, at a fixed schedule of looks that share the error (see ``Looks``), or until ``max_blocks`` or
    ``max_seconds`` ends it, undecided.

    What is compared are typical calls, each block's median, as a stall of the machine can make one call a
    hundred times longer. A gain in typical calls is void if the mean of all calls contradicts it with the
    same confidence.

    Args:
        candidate: Does one pass of the workload, through the path that users call.
        baseline: The same work, done by what the candidate would replace.
        stopwatch: Clock and device synchronisation; None reads the system's clock and waits for no device.
        config: None for the defaults.
        min_gain: Gain worth having, as a ratio; 0.01 asks for a speedup of 1.01.
        observe: Gets outputs of the candidate, two from each block, the first and the last. Called between
            blocks, never in timed spans; what it raises ends the comparison.

    Returns:
        The evidence and the decision. Whatever the callables raise passes through.

    Raises:
        ValueError: If ``min_gain`` is -1 or less.
    """
    if not min_gain > -1:
        raise ValueError(f"min_gain must be above -1, not {min_gain!r}")
    stopwatch = stopwatch or Stopwatch()
    config = config or ProfilingConfig()
    start = stopwatch.read()
    rough = Times(*(seconds_per_call(call, stopwatch, config) for call in (candidate, baseline)))
    race = Race(candidate, baseline, stopwatch, config, observe, end=start + config.max_seconds)
    finding = race.run(rough, 1 + min_gain)
    times = finding.times or (rough,)
    count = len(finding.times)
    undecided = finding.outcome == "undecided"
    fewest = fewest_values(config.confidence)
    spread = _spread([pair.ratio for pair in times])
    return PairedTiming(
        speedup=finding.interval.median,
        low=finding.interval.low,
        high=finding.interval.high,
        confidence=config.confidence,
        basis=finding.basis,
        blocks=count,
        fewest_blocks=fewest,
        candidate_seconds=statistics.median(pair.candidate for pair in times),
        baseline_seconds=statistics.median(pair.baseline for pair in times),
        outcome=finding.outcome,
        min_gain=min_gain,
        spread=spread,
        busy=undecided and count >= fewest and (finding.stalled or spread > config.busy_spread),
        ended="decided" if not undecided else "blocks" if count == config.max_blocks else "seconds",
        seconds=stopwatch.read() - start,
    )


def _spread(ratios: Sequence[float]) -> float:
    """Relative distance between the quartiles."""
    if len(ratios) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return upper / lower - 1
