"""The fake clock that plugin authors test with."""

from __future__ import annotations

import math

import pytest

from aitune.testing.clock import Disturbance, FakeClock
from aitune.torch.measure import Clock, Stopwatch


def test_time_moves_by_work_and_by_sleep_alone():
    clock: Clock = FakeClock()
    assert clock.now() == clock.now() == 0.0
    clock.sleep(2.0)
    clock.work(0.5)
    assert clock.now() == 2.5


def test_a_callable_takes_its_time_and_returns_its_output():
    clock = FakeClock()
    seconds, output = Stopwatch(clock).time_calls(clock.callable(0.25, output="y"), 4)
    assert (seconds, output) == (1.0, "y")


def test_the_same_seed_gives_the_same_times_and_another_seed_others():
    def run(seed: int) -> list[float]:
        clock = FakeClock(seed, Disturbance(noise=0.1, burst_rate=100))
        times = []
        for _ in range(20):
            clock.work(0.001)
            times.append(clock.now())
        return times

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_noise_is_as_wide_as_asked_for():
    clock = FakeClock(0, Disturbance(noise=0.1))
    logs = [math.log(_time_of_work(clock, 1.0)) for _ in range(2000)]
    spread = math.sqrt(sum(log**2 for log in logs) / len(logs))
    assert spread == pytest.approx(0.1, rel=0.1)


def test_held_noise_stays_for_as_long_as_asked_for():
    clock = FakeClock(0, Disturbance(noise=0.1, noise_hold=10.0))
    times = {round(_time_of_work(clock, 0.01), 9) for _ in range(100)}
    assert len(times) == 1


def test_drift_makes_later_work_slower():
    clock = FakeClock(0, Disturbance(drift=0.5))
    clock.sleep(2.0)
    assert _time_of_work(clock, 1.0) == pytest.approx(2.0)


def test_a_ramp_starts_slow_and_ends_at_full_speed():
    clock = FakeClock(0, Disturbance(ramp_factor=3.0, ramp_seconds=10.0))
    assert _time_of_work(clock, 1e-3) == pytest.approx(3e-3)
    clock.sleep(10.0)
    assert _time_of_work(clock, 1e-3) == pytest.approx(1e-3)


def test_bursts_come_at_their_rate():
    clock = FakeClock(0, Disturbance(burst_rate=10.0, burst_seconds=1.0))
    stalls = sum(_time_of_work(clock, 0.01) > 0.5 for _ in range(2000))
    assert stalls == pytest.approx(2000 * 0.01 * 10, rel=0.25)


def test_a_coarse_clock_rounds_down():
    clock = FakeClock(resolution=1e-3)
    clock.work(0.0019)
    assert clock.now() == pytest.approx(0.001)


def _time_of_work(clock: FakeClock, seconds: float) -> float:
    start = clock.now()
    clock.work(seconds)
    return clock.now() - start
