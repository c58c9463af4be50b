"""Percentiles of the times of single calls."""

from __future__ import annotations

import pytest

from aitune.testing.clock import FakeClock
from aitune.torch.measure import Latency, ProfilingConfig, Stopwatch, latency_percentiles


def test_percentiles_are_times_of_calls_that_were_made():
    clock = FakeClock()
    warming = [0.001] * 6
    times = iter(warming + [0.001 * (number % 100 + 1) for number in range(1000)])
    config = ProfilingConfig(latency_calls=100)
    latency = latency_percentiles(lambda: clock.work(next(times)), stopwatch=Stopwatch(clock), config=config)
    assert latency.calls == 100
    assert latency.p50 == pytest.approx(0.050)
    assert latency.p90 == pytest.approx(0.090)
    assert latency.p95 == pytest.approx(0.095)
    assert latency.p99 == pytest.approx(0.099)
    assert latency.mean == pytest.approx(0.0505)


def test_a_rare_slow_call_shows_in_the_tail_alone():
    clock = FakeClock()
    count = iter(range(10**6))
    latency = latency_percentiles(
        lambda: clock.work(0.1 if next(count) % 50 == 0 else 0.001), stopwatch=Stopwatch(clock)
    )
    assert latency.p95 == pytest.approx(0.001)
    assert latency.p99 == pytest.approx(0.1)


def test_the_device_is_waited_for_after_each_call():
    clock = FakeClock()
    pending: list[float] = []

    def drain() -> None:
        while pending:
            clock.work(pending.pop())

    stopwatch = Stopwatch(clock, synchronize=drain)
    latency = latency_percentiles(lambda: pending.append(0.002), stopwatch=stopwatch)
    assert latency.p50 == latency.p99 == pytest.approx(0.002)


def test_it_stops_within_its_time_and_says_how_many_calls_there_were():
    clock = FakeClock()
    config = ProfilingConfig(max_seconds=10.0)
    latency = latency_percentiles(clock.callable(1.0), stopwatch=Stopwatch(clock), config=config)
    assert latency.calls == 7  # of ten seconds two went into warming up and a rough time, and one pause into none
    assert clock.now() <= 10.0


def test_one_call_is_timed_whatever_it_takes():
    clock = FakeClock()
    config = ProfilingConfig(max_seconds=1.0)
    latency = latency_percentiles(clock.callable(5.0), stopwatch=Stopwatch(clock), config=config)
    assert latency == Latency(p50=5.0, p90=5.0, p95=5.0, p99=5.0, mean=5.0, calls=1)
