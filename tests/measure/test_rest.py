"""The pause before a block: threads that spin are waited for, those of the program are not for ever."""

from __future__ import annotations

import threading
import time

import pytest

from aitune.testing.clock import FakeClock
from aitune.torch.measure.clock import SystemClock
from aitune.torch.measure.rest import Rest


class Spinning(FakeClock):
    """A clock of a process one thread of which spins until a time."""

    def __init__(self, until):
        super().__init__()
        self.until = until

    def others_run(self):
        return self.now() < self.until


def test_the_least_pause_where_nothing_works():
    clock = FakeClock()
    Rest(clock, 0.003).take()
    assert clock.now() == pytest.approx(0.003)


def test_threads_that_spin_are_waited_for():
    clock = Spinning(until=0.055)
    Rest(clock, 0.003).take()
    assert 0.055 <= clock.now() < 0.0581


def test_threads_of_the_program_are_waited_for_three_times():
    clock = Spinning(until=1e9)
    rest = Rest(clock, 0.003)
    pauses = []
    for _ in range(6):
        before = clock.now()
        rest.take()
        pauses.append(clock.now() - before)
    assert pauses == [pytest.approx(0.503, abs=0.004)] * 3 + [pytest.approx(0.003)] * 3


def test_no_pause_at_all():
    clock = Spinning(until=1e9)
    Rest(clock, 0.0).take()
    assert clock.now() == 0.0


def test_a_real_thread_that_spins_is_waited_for():
    over = threading.Event()

    def spin():
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass
        over.set()

    threading.Thread(target=spin).start()
    Rest(SystemClock(), 0.003).take()
    assert over.is_set()
