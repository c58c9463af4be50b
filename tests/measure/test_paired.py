"""The paired comparison, on a quiet or purposely disturbed clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

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


def test_worker_threads_that_spin_after_their_blocks_do_not_slow_the_other_side():
    clock = FakeClock()
    spinning_until = {"candidate": -1.0, "baseline": -1.0}

    def side(name: str, other: str) -> Callable[[], None]:
        def call() -> None:
            disturbed = clock.now() < spinning_until[other]
            clock.work(0.004 if disturbed else 0.002)
            spinning_until[name] = clock.now() + 0.002

        return call

    timing = compare(side("candidate", "baseline"), side("baseline", "candidate"), stopwatch=Stopwatch(clock))
    assert timing.candidate_seconds == timing.baseline_seconds == pytest.approx(0.002)


def test_a_first_estimate_that_is_wrong_many_times_over_favours_no_side():
    clock, counts = FakeClock(4, QUIET), {"candidate": 0, "baseline": 0}

    def side(name: str, stalled: int) -> Callable[[], None]:
        def call() -> None:
            counts[name] += 1
            clock.work(0.02 if counts[name] <= stalled else 0.001)

        return call

    # Warming up, estimating and the first pair of the baseline are stalled.
    timing = compare(side("candidate", 0), side("baseline", 15), stopwatch=Stopwatch(clock))
    assert timing.outcome == "not_faster"
    # Once a quick call is seen, blocks have twenty calls again; and always as many of one side as of the other.
    assert counts["baseline"] > 10 * timing.blocks
    assert abs(counts["candidate"] - counts["baseline"]) < 10


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


@pytest.mark.parametrize("resolution", [0.0, 1e-6])
def test_a_module_too_quick_to_time_is_timed_in_batches(resolution):
    clock = FakeClock(0, resolution=resolution)
    reads = 0

    class CountingClock:
        def now(self) -> float:
            nonlocal reads
            reads += 1
            clock.work(1e-7)  # reading a clock costs time as well
            return clock.now()

        def sleep(self, seconds: float) -> None:
            clock.sleep(seconds)

    calls = 0

    def candidate() -> None:
        nonlocal calls
        calls += 1
        clock.work(4e-6)

    timing = compare(candidate, clock.callable(5e-6), stopwatch=Stopwatch(CountingClock()))
    assert timing.outcome == "faster"
    assert timing.speedup == pytest.approx(1.25, rel=0.01)
    assert timing.candidate_seconds == pytest.approx(4e-6, rel=0.01)
    assert reads < calls / 5


def test_a_slow_module_is_compared_in_single_calls():
    clock = FakeClock(3, QUIET)
    timing = compare(clock.callable(3.0), clock.callable(3.6), stopwatch=Stopwatch(clock))
    assert timing.outcome == "faster"
    assert timing.seconds <= 120.0


def test_the_order_within_pairs_is_random_and_comes_from_the_seed():
    def order(seed: int) -> str:
        clock, log = FakeClock(), []

        def side(letter: str) -> Callable[[], None]:
            def call() -> None:
                if log[-1:] != [letter]:
                    log.append(letter)
                clock.work(0.3)

            return call

        compare(side("c"), side("b"), stopwatch=Stopwatch(clock), config=ProfilingConfig(seed=seed))
        return "".join(log)

    assert order(0) == order(0)
    assert len({order(seed) for seed in range(5)}) > 1
    # Strict alternation would be cbcbcb; a random order holds both neighbours alike and neighbours apart.
    assert "cb" in order(0)
    assert len(order(0)) < 2 * ProfilingConfig().min_blocks


def test_the_global_random_state_is_left_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    run(1.2)
    assert random.random() == expected


def test_outputs_of_the_candidate_are_shown_outside_the_timed_spans():
    clock = FakeClock()
    number = iter(range(10**6))
    seen: list[int] = []

    def candidate() -> int:
        clock.work(0.002)
        return next(number)

    def observe(output: object) -> None:
        clock.work(0.5)
        assert isinstance(output, int)
        seen.append(output)

    timing = compare(candidate, clock.callable(0.0024), stopwatch=Stopwatch(clock), observe=observe)
    assert timing.candidate_seconds == pytest.approx(0.002)
    assert timing.baseline_seconds == pytest.approx(0.0024)
    assert len(seen) == 2 * timing.blocks
    assert seen == sorted(set(seen))


def test_an_engine_that_hands_out_one_buffer_twice_can_be_seen():
    clock, buffer, shown = FakeClock(), [0], []

    def candidate() -> list[int]:
        clock.work(0.002)
        buffer[0] += 1
        return buffer

    compare(candidate, clock.callable(0.002), stopwatch=Stopwatch(clock), observe=shown.append)
    assert shown[0] is shown[1]


def test_what_the_observer_raises_ends_the_comparison():
    def observe(output: object) -> None:
        raise ArithmeticError("wrong output")

    clock = FakeClock()
    with pytest.raises(ArithmeticError, match="wrong output"):
        compare(clock.callable(0.01), clock.callable(0.01), stopwatch=Stopwatch(clock), observe=observe)


def test_the_device_is_waited_for():
    clock = FakeClock()
    pending = 0.0

    def submit(seconds: float) -> Callable[[], None]:
        def call() -> None:
            nonlocal pending
            clock.work(1e-5)
            pending += seconds

        return call

    def drain() -> None:
        nonlocal pending
        clock.work(pending)
        pending = 0.0

    timing = compare(submit(0.001), submit(0.002), stopwatch=Stopwatch(clock, synchronize=drain))
    assert timing.speedup == pytest.approx(2.0, rel=0.02)


def test_a_gain_that_makes_no_sense_is_refused():
    clock = FakeClock()
    with pytest.raises(ValueError, match="min_gain"):
        compare(clock.callable(1.0), clock.callable(1.0), min_gain=-1.0)
