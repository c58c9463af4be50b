"""How the two sides of a comparison are run: in blocks, in random order, alike, with the outputs shown between."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from aitune.testing.clock import Disturbance, FakeClock
from aitune.torch.measure import ProfilingConfig, Stopwatch, compare

QUIET = Disturbance(noise=0.01, noise_hold=0.02)


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


def test_what_observing_costs_is_part_of_the_time():
    clock = FakeClock()
    calls = clock.callable(0.002), clock.callable(0.002)
    config = ProfilingConfig(max_seconds=10.0)
    timing = compare(*calls, stopwatch=Stopwatch(clock), config=config, observe=lambda output: clock.sleep(1.0))
    assert timing.seconds <= 10.0


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

        def others_run(self) -> bool:
            return False

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
    clock = FakeClock()
    compare(clock.callable(0.002), clock.callable(0.003), stopwatch=Stopwatch(clock))
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


def test_a_gain_that_is_the_baselines_stalls_is_no_gain():
    clock = FakeClock()
    calls = []

    def stalling():
        calls.append(1)
        clock.work(1e-3 if len(calls) % 10 == 0 else 20e-3)

    timing = compare(clock.callable(1e-3), stalling, stopwatch=Stopwatch(clock))
    assert timing.outcome == "undecided"
    assert timing.busy
    assert timing.speedup == pytest.approx(1.0)


def test_a_gain_beyond_the_baselines_stalls_is_the_gain_of_the_quickest_calls():
    clock = FakeClock()
    calls = []

    def stalling():
        calls.append(1)
        clock.work(5e-3 if len(calls) % 3 == 0 else 50e-3)

    timing = compare(clock.callable(1e-3), stalling, stopwatch=Stopwatch(clock))
    assert timing.outcome == "faster"
    assert timing.speedup == pytest.approx(5.0)
    assert timing.low <= timing.speedup <= timing.high
