"""How many calls make a block, and what a block shows."""

from __future__ import annotations

import pytest

from aitune.testing.clock import FakeClock
from aitune.torch.measure import ProfilingConfig, Stopwatch
from aitune.torch.measure.block import BlockPlan, run_block, seconds_per_call
from aitune.torch.measure.rest import Rest

CONFIG = ProfilingConfig()


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
    assert BlockPlan.for_calls_of(seconds, CONFIG) == BlockPlan(1, rounds, dropped, patience=0.2)


def test_more_calls_are_dropped_where_that_is_asked_for():
    assert BlockPlan.for_calls_of(5e-3, ProfilingConfig(dropped_calls=3)).dropped == 3


def test_quick_functions_are_called_in_batches_that_a_clock_can_time():
    plan = BlockPlan.for_calls_of(4.9e-6, CONFIG)
    assert (plan.batch, plan.rounds) == (41, 20)
    assert plan.dropped * 4.9e-6 >= CONFIG.dropped_seconds


def test_a_function_that_takes_no_time_at_all_ends():
    clock = FakeClock()
    assert seconds_per_call(clock.callable(0.0), Stopwatch(clock), CONFIG) == 0.0
    assert BlockPlan.for_calls_of(0.0, CONFIG).calls < 1e6


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

    block = run_block(call, BlockPlan(batch=1, rounds=3, dropped=2), Stopwatch(clock), Rest(clock, 0.5))
    assert started[0] == 0.5
    assert len(started) == 5
    assert block.typical == block.mean == pytest.approx(0.001)
    assert block.outputs == (1, 5)


def test_a_stall_is_seen_in_the_mean_alone():
    clock = FakeClock()
    count = iter(range(1000))
    call = lambda: clock.work(0.101 if next(count) == 7 else 0.001)  # noqa: E731
    block = run_block(call, BlockPlan(1, 20, 0), Stopwatch(clock), Rest(clock, 0.0))
    assert block.least == pytest.approx(0.001)
    assert block.typical == pytest.approx(0.001)
    assert block.mean == pytest.approx(0.006)


def test_a_block_of_stalls_ends_early_but_not_before_five_calls():
    clock = FakeClock()
    plan = BlockPlan(1, 20, 0, patience=0.2)
    run_block(clock.callable(0.030), plan, Stopwatch(clock), Rest(clock, 0.0))
    assert clock.now() == pytest.approx(7 * 0.030)
    run_block(clock.callable(1.0), plan, Stopwatch(clock), Rest(clock, 0.0))
    assert clock.now() == pytest.approx(7 * 0.030 + 5 * 1.0)


def test_a_batch_counts_for_all_of_its_calls():
    clock = FakeClock()
    block = run_block(clock.callable(1e-6), BlockPlan(50, 20, 0), Stopwatch(clock), Rest(clock, 0.0))
    assert (block.typical, block.mean) == (pytest.approx(1e-6), pytest.approx(1e-6))
    assert clock.now() == pytest.approx(1e-3)


def test_a_device_is_waited_for_once_a_block():
    clock = FakeClock()
    waits: list[float] = []
    stopwatch = Stopwatch(clock, synchronize=lambda: waits.append(clock.now()))
    block = run_block(clock.callable(0.001), BlockPlan(1, 20, 0), stopwatch, Rest(clock, 0.0))
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

    block = run_block(Output, BlockPlan(1, 10, 3), Stopwatch(FakeClock()), Rest(FakeClock(), 0.0))
    assert len(block.outputs) == 2
    assert most == 2
