"""The stopwatch: time is read when the device is idle."""

from __future__ import annotations

from aitune.testing.clock import FakeClock
from aitune.torch.measure import Stopwatch, SystemClock


def test_work_that_the_device_still_does_is_part_of_the_time():
    clock = FakeClock()
    queue: list[float] = []

    def drain() -> None:
        while queue:
            clock.work(queue.pop())

    stopwatch = Stopwatch(clock, synchronize=drain)
    queue.append(5.0)  # someone else's work, to be waited for before the start
    seconds, _ = stopwatch.time_calls(lambda: queue.append(1.0), 3)
    assert seconds == 3.0


def test_only_the_last_output_outlives_its_call():
    outputs = iter(range(5))
    assert Stopwatch(FakeClock()).time_calls(lambda: next(outputs), 3)[1] == 2


def test_the_system_clock_does_not_go_backwards():
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0.0)
    assert clock.now() >= before
