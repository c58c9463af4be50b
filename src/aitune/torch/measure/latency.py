"""The latency of one callable: percentiles of the times of single calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aitune.torch.measure.block import seconds_per_call
from aitune.torch.measure.profiling_config import ProfilingConfig
from aitune.torch.measure.rest import Rest
from aitune.torch.measure.stopwatch import Stopwatch

__all__ = ["Latency", "latency_percentiles"]


@dataclass(frozen=True)
class Latency:
    """Times of single calls, in seconds.

    Percentiles are nearest-rank: each is the time of a call that was made, never a value between two calls,
    and of the two neighbours the slower one. With fewer than 100 calls ``p99`` is the slowest call.

    Attributes:
        p50: Half of the calls took at most this long.
        p90: 90 of 100 calls took at most this long.
        p95: 95 of 100 calls took at most this long.
        p99: 99 of 100 calls took at most this long.
        mean: Of all calls.
        calls: How many calls were timed.
    """

    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    calls: int


def latency_percentiles(
    call: Callable[[], object],
    *,
    stopwatch: Stopwatch | None = None,
    config: ProfilingConfig | None = None,
) -> Latency:
    """Time single calls, one after the other, the device idle before and after each.

    Quick calls are not batched here: the percentile of a batch's mean would hide the slow calls that
    percentiles are for. Reading the clock is part of each time (about 0.1 µs).

    Args:
        call: Does one pass of the workload.
        stopwatch: Clock and device synchronisation; None reads the system's clock and waits for no device.
        config: None for the defaults; ``latency_calls``, ``warmup_calls`` and ``max_seconds`` matter here.

    Returns:
        Percentiles of ``latency_calls`` calls, or of as many as ``max_seconds`` allows and at least one.
    """
    stopwatch = stopwatch or Stopwatch()
    config = config or ProfilingConfig()
    end = stopwatch.read() + config.max_seconds
    expected = seconds_per_call(call, stopwatch, config)
    Rest(stopwatch.clock, config.idle_seconds).take()
    times: list[float] = []
    while len(times) < config.latency_calls and (not times or stopwatch.clock.now() + expected <= end):
        times.append(stopwatch.time_calls(call, 1)[0])
    times.sort()
    return Latency(
        p50=_nearest_rank(times, 50),
        p90=_nearest_rank(times, 90),
        p95=_nearest_rank(times, 95),
        p99=_nearest_rank(times, 99),
        mean=math.fsum(times) / len(times),
        calls=len(times),
    )


def _nearest_rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[-(-percent * len(ordered) // 100) - 1]
