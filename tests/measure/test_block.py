"""How many calls make a block, and what a block shows."""

from __future__ import annotations

import pytest

from aitune.testing.clock import FakeClock
from aitune.torch.measure import ProfilingConfig, Stopwatch
from aitune.torch.measure.block import Side, plan_sides, seconds_per_call

CONFIG = ProfilingConfig()


def plan(candidate_seconds: float, baseline_seconds: float) -> tuple[Side, Side]:
    clock = FakeClock()
    calls = clock.callable(candidate_seconds), clock.callable(baseline_seconds)
    return plan_sides(*calls, Stopwatch(clock), CONFIG)


@pytest.mark.parametrize(
    ("seconds", "rounds", "dropped"),
    [
        (0.051e-3, 20, 20),  # twenty calls come first; what is dropped lasts a millisecond
        (0.9e-3, 20, 2),
        (4.9e-3, 4, 1),  # twenty milliseconds come first
        (19e-3, 1, 1),
        (150e-3, 1, 1),  # at least one
        (2.0, 1, 0),  # a call of two seconds has no cold start to speak of
    ],
)
def test_a_block_is_twenty_calls_or_twenty_milliseconds(seconds, rounds, dropped):
    for side in plan(seconds, seconds):
        assert (side.batch, side.rounds, side.dropped) == (1, rounds, dropped)


def test_more_calls_are_dropped_where_that_is_asked_for():
    clock = FakeClock()
    config = ProfilingConfig(dropped_calls=3)
    for side in plan_sides(clock.callable(5e-3), clock.callable(5e-3), Stopwatch(clock), config):
        assert side.dropped == 3


def test_quick_functions_are_called_in_batches_that_a_clock_can_time():
    ours, theirs = plan(4.9e-6, 9.8e-6)
    assert ours.batch == theirs.batch == 41
    assert ours.rounds == theirs.rounds == 20
    assert ours.dropped == theirs.dropped
    assert ours.dropped * theirs.seconds >= CONFIG.dropped_seconds


def test_sides_of_like_speed_get_the_same_plan():
    ours, theirs = plan(2e-3, 3.9e-3)
    assert (ours.rounds, ours.dropped) == (theirs.rounds, theirs.dropped) == (5, 1)


def test_sides_far_apart_get_plans_of_their_own():
    ours, theirs = plan(9e-6, 9e-3)
    assert (ours.batch, ours.rounds) == (23, 20)
    assert (theirs.batch, theirs.rounds) == (1, 2)


def test_a_function_that_takes_no_time_at_all_ends():
    ours, theirs = plan(0.0, 0.0)
    assert (ours.batch, ours.rounds) == (theirs.batch, theirs.rounds)
    assert ours.seconds > 0


def test_stalls_do_not_spoil_the_rough_time():
    clock = FakeClock()
    count = iter(range(100))
    call = lambda: clock.work(1e-3 if next(count) % 3 == 2 else 15e-3)  # noqa: E731
    assert seconds_per_call(call, Stopwatch(clock), CONFIG) == pytest.approx(1e-3)


def test_a_long_first_call_is_not_taken_for_the_others():
    clock = FakeClock()
    times = iter([15.0])  # a compilation
    seconds = seconds_per_call(lambda: clock.work(next(times, 2e-3)), Stopwatch(clock), CONFIG)
    assert seconds == pytest.approx(2e-3)


def test_long_calls_are_not_repeated_to_know_how_long_they_are():
    clock = FakeClock()
    assert seconds_per_call(clock.callable(5.0), Stopwatch(clock), CONFIG) == 5.0
    assert clock.now() == 10.0


def test_a_coarse_clock_is_enough():
    clock = FakeClock(resolution=1e-4)
    seconds = seconds_per_call(clock.callable(7e-6), Stopwatch(clock), CONFIG)
    assert seconds == pytest.approx(7e-6, rel=0.25)


def test_the_pause_comes_first_and_dropped_calls_are_not_timed():
    clock = FakeClock()
    started: list[float] = []

    def call() -> int:
        started.append(clock.now())
        clock.work(1.0 if len(started) <= 2 else 0.001)
        return len(started)

    side = Side(call, batch=1, rounds=3, dropped=2, seconds=0.001)
    block = side.run_block(Stopwatch(clock), idle_seconds=0.5)
    assert started[0] == 0.5
    assert len(started) == 5
    assert block.typical == block.mean == pytest.approx(0.001)
    assert block.outputs == (1, 5)


def test_a_stall_is_seen_in_the_mean_alone():
    clock = FakeClock()
    count = iter(range(1000))
    side = Side(lambda: clock.work(0.101 if next(count) == 7 else 0.001), 1, 20, 0, 0.001)
    block = side.run_block(Stopwatch(clock), 0.0)
    assert block.typical == pytest.approx(0.001)
    assert block.mean == pytest.approx(0.006)


def test_a_batch_counts_for_all_of_its_calls():
    clock = FakeClock()
    block = Side(clock.callable(1e-6), 50, 20, 0, 1e-6).run_block(Stopwatch(clock), 0.0)
    assert (block.typical, block.mean) == (pytest.approx(1e-6), pytest.approx(1e-6))
    assert clock.now() == pytest.approx(1e-3)


def test_a_device_is_waited_for_once_a_block():
    clock = FakeClock()
    waits: list[float] = []
    stopwatch = Stopwatch(clock, synchronize=lambda: waits.append(clock.now()))
    block = Side(clock.callable(0.001), 1, 20, 0, 0.001).run_block(stopwatch, 0.0)
    assert waits == [0.0, pytest.approx(0.020)]
    assert block.typical == block.mean == pytest.approx(0.001)


def test_only_the_outputs_that_are_shown_are_kept():
    alive: set[int] = set()
    most = 0

    class Output:
        def __init__(self) -> None:
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    block = Side(Output, 1, 10, 3, 0.001).run_block(Stopwatch(FakeClock()), 0.0)
    assert len(block.outputs) == 2
    assert most == 2
