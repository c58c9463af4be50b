"""The paired comparison, on a quiet or purposely disturbed clock."""

from __future__ import annotations

import math

import pytest

from aitune.testing.clock import Disturbance, FakeClock
from aitune.torch.measure import PairedTiming, ProfilingConfig, Stopwatch, compare

QUIET = Disturbance(noise=0.01, noise_hold=0.02)


def run(speedup: float, disturbance: Disturbance = QUIET, **settings: object) -> PairedTiming:
    clock = FakeClock(1, disturbance)
    config = ProfilingConfig(**settings)
    seconds = 0.002
    return compare(
        clock.callable(seconds / speedup), clock.callable(seconds), stopwatch=Stopwatch(clock), config=config
    )


def test_a_clear_gain_is_found_at_the_first_look():
    timing = run(1.2)
    assert timing.outcome == "faster"
    assert timing.blocks == ProfilingConfig().min_blocks
    assert timing.low < timing.speedup < timing.high
    assert timing.speedup == pytest.approx(1.2, rel=0.02)
    assert timing.baseline_seconds == pytest.approx(0.002, rel=0.02)
    assert timing.candidate_seconds == pytest.approx(0.002 / 1.2, rel=0.02)
    assert timing.ended == "decided"
    assert timing.reason.startswith("faster: ")


def test_a_clear_loss_is_found_at_the_first_look():
    timing = run(0.8)
    assert timing.outcome == "not_faster"
    assert timing.blocks == ProfilingConfig().min_blocks
    assert timing.reason.startswith("not faster by 1.00%")


def test_more_pairs_are_measured_while_the_interval_straddles_the_threshold():
    noisy = Disturbance(noise=0.02, noise_hold=0.02)
    timing = run(1.02, noisy)
    assert timing.outcome == "faster"
    assert timing.blocks > ProfilingConfig().min_blocks


def test_a_gain_at_the_threshold_stays_undecided_without_calling_the_machine_busy():
    timing = run(1.01)
    assert (timing.outcome, timing.ended, timing.blocks) == ("undecided", "blocks", 160)
    assert timing.low < 1.01 <= timing.high
    assert not timing.busy
    assert "too close" in timing.reason


def test_a_machine_so_busy_that_the_interval_stays_open_is_said_to_be_so():
    timing = run(1.02, Disturbance(noise=0.3, noise_hold=0.03, burst_rate=20), max_blocks=40)
    assert timing.outcome == "undecided"
    assert timing.busy
    assert timing.spread > 0.05
    assert "busy" in timing.reason


def test_the_spread_is_the_distance_between_the_quartiles():
    timing = run(1.01, Disturbance(noise=0.03, noise_hold=0.02))
    assert timing.blocks == 160
    assert timing.spread == pytest.approx(2 * 0.674 * 0.03 * 2**0.5, rel=0.25)  # of a normal distribution


def test_a_busy_machine_does_not_hide_a_gain_that_is_large_enough():
    timing = run(1.5, Disturbance(noise=0.3, noise_hold=0.03, burst_rate=20))
    assert timing.outcome == "faster"
    assert not timing.busy


def test_one_side_a_hundred_times_slower_for_a_round_changes_nothing():
    clock = FakeClock(2, QUIET)

    def baseline() -> None:
        stalled = 0.3 < clock.now() < 0.4
        clock.work(0.2 if stalled else 0.002)

    timing = compare(clock.callable(0.002), baseline, stopwatch=Stopwatch(clock))
    assert timing.outcome == "not_faster"
    assert timing.speedup == pytest.approx(1.0, rel=0.02)


def test_a_gain_in_typical_calls_that_all_calls_contradict_is_none():
    clock, count = FakeClock(2, QUIET), iter(range(10**6))

    def candidate() -> None:
        clock.work(0.010 if next(count) % 5 == 0 else 0.001)  # twice as fast, but for every fifth call

    timing = compare(candidate, clock.callable(0.002), stopwatch=Stopwatch(clock))
    assert (timing.outcome, timing.basis) == ("not_faster", "all calls")
    assert timing.speedup == pytest.approx(2.0 / 2.8, rel=0.05)
    assert "all calls" in timing.reason


def test_stalls_of_the_machine_do_not_contradict_a_gain():
    timing = run(1.2, Disturbance(noise=0.01, noise_hold=0.02, burst_rate=60))
    assert (timing.outcome, timing.basis) == ("faster", "typical calls")
    assert timing.speedup == pytest.approx(1.2, rel=0.02)


def test_sides_far_apart_are_told_apart_quickly():
    clock = FakeClock(5, QUIET)
    timing = compare(clock.callable(5e-6), clock.callable(5e-3), stopwatch=Stopwatch(clock))
    assert (timing.outcome, timing.blocks) == ("faster", 10)
    assert timing.speedup == pytest.approx(1000, rel=0.05)
    assert timing.seconds < 2.0


def test_it_stops_within_its_time():
    timing = run(1.01, max_seconds=3.0)
    assert (timing.outcome, timing.ended) == ("undecided", "seconds")
    assert 2.5 < timing.seconds <= 3.0


@pytest.mark.parametrize(("max_seconds", "blocks"), [(5.0, 0), (9.0, 2)])
def test_a_pair_that_would_end_too_late_is_not_begun(max_seconds, blocks):
    clock = FakeClock()
    config = ProfilingConfig(max_seconds=max_seconds)
    # Four calls of a second to warm up and estimate, and two for each pair.
    timing = compare(clock.callable(1.0), clock.callable(1.0), stopwatch=Stopwatch(clock), config=config)
    assert timing.blocks == blocks
    assert clock.now() == timing.seconds <= max_seconds


def test_time_that_ends_before_the_first_look_can_still_decide():
    timing = run(1.5, min_blocks=100, max_seconds=1.0)
    assert timing.blocks < 100
    assert timing.outcome == "faster"


def test_a_look_that_time_makes_the_last_may_spend_the_whole_error():
    clock = FakeClock(3, QUIET)
    # Time for eight pairs: enough for an interval of 99 %, not for the first look's share of the error.
    config = ProfilingConfig(max_seconds=79.0)
    timing = compare(clock.callable(3.0), clock.callable(4.5), stopwatch=Stopwatch(clock), config=config)
    assert (timing.blocks, timing.outcome) == (8, "faster")


def test_too_little_time_for_an_interval_is_undecided_and_not_called_busy():
    timing = run(2.0, Disturbance(noise=0.05), max_seconds=0.12, block_calls=1)
    assert 0 < timing.blocks < timing.fewest_blocks
    assert (timing.outcome, timing.low, timing.high) == ("undecided", 0.0, math.inf)
    assert timing.speedup == pytest.approx(2.0, rel=0.05)
    assert not timing.busy
    assert "8 are needed" in timing.reason


def test_no_time_for_a_single_pair_gives_the_rough_ratio():
    timing = run(2.0, max_seconds=0.03)
    assert (timing.blocks, timing.outcome, timing.ended) == (0, "undecided", "seconds")
    assert timing.speedup == pytest.approx(2.0, rel=0.05)


def test_a_slow_module_is_compared_in_single_calls():
    clock = FakeClock(3, QUIET)
    timing = compare(clock.callable(3.0), clock.callable(3.6), stopwatch=Stopwatch(clock))
    assert timing.outcome == "faster"
    assert timing.seconds <= 120.0


def test_an_undecided_comparison_ends_once_it_had_time_to_settle():
    clock = FakeClock(3, QUIET)
    config = ProfilingConfig(settle_seconds=5.0)
    timing = compare(clock.callable(0.1), clock.callable(0.101), stopwatch=Stopwatch(clock), config=config)
    assert (timing.outcome, timing.ended) == ("undecided", "seconds")
    assert timing.blocks >= config.min_blocks
    assert timing.seconds < 8.0


def test_a_gain_that_makes_no_sense_is_refused():
    clock = FakeClock()
    with pytest.raises(ValueError, match="min_gain"):
        compare(clock.callable(1.0), clock.callable(1.0), min_gain=-1.0)
