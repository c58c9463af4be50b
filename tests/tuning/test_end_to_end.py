"""The whole function is timed last, and modules are put back while it is slower; time is a fake clock's."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FakeClock, FunctionBackend, FunctionBackendConfig
from aitune.torch.dataloader import Batch
from aitune.torch.measure import Stopwatch
from aitune.torch.module.tune_module import TuneOptions
from aitune.torch.tuning.end_to_end import Whole, time_whole


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def tuned(clock):
    """Make a tuned module whose call takes 1 ms untuned, and ``fraction`` of that with its engine."""

    def make(name, fraction, validation=True):
        class Doubled(torch.nn.Module):
            def forward(self, x):
                clock.work(1e-3)
                return x * 2

        def build(job):
            def run(x):
                clock.work(fraction * 1e-3)
                return x * 2

            return run

        backend = FunctionBackend(build, FunctionBackendConfig(label=name))
        strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
        module = Doubled().eval()
        wrapped = ait.Module(module, name, strategy)
        ait.handle(wrapped).enable_recording()
        wrapped(torch.ones(2, 3))
        ait.handle(wrapped).tune_with(TuneOptions(stopwatch=Stopwatch(clock=clock)))
        strategy.enable_performance_validation(validation)
        return wrapped, backend

    return make


def whole(clock, func):
    return Whole(func, [Batch((torch.ones(2, 3),), {}, 2)], Stopwatch(clock=clock))


def never():
    return False


def test_a_faster_whole_stays_tuned(clock, tuned):
    wrapped, backend = tuned("a", 0.5)
    end = time_whole(whole(clock, wrapped), [ait.handle(wrapped)], never)
    assert end.speedup == pytest.approx(2.0, rel=0.01)
    assert end.put_back == ()
    assert backend.open_engines == 1
    assert ait.handle(wrapped).stats.calls == 0


def test_the_module_that_made_the_whole_slower_is_put_back_and_the_other_stays(clock, tuned):
    quick, quick_backend = tuned("quick", 0.9)
    slow, slow_backend = tuned("slow", 3.0)
    end = time_whole(whole(clock, lambda x: slow(quick(x))), [ait.handle(quick), ait.handle(slow)], never)
    assert end.put_back == ("slow",)
    assert end.speedup > 1
    assert (quick_backend.open_engines, slow_backend.open_engines) == (1, 0)
    assert ait.handle(slow).result.put_back
    assert slow.__wrapped__._compiled_call_impl is None
    assert "put_back" in ait.handle(slow).result.state


def test_where_everything_is_slower_everything_is_put_back(clock, tuned):
    first, _ = tuned("first", 1.5)
    second, _ = tuned("second", 1.2)
    end = time_whole(whole(clock, lambda x: second(first(x))), [ait.handle(first), ait.handle(second)], never)
    assert set(end.put_back) == {"first", "second"}
    assert end.original_seconds == end.tuned_seconds


def test_without_performance_validation_a_slower_module_stays(clock, tuned):
    wrapped, backend = tuned("kept", 2.0, validation=False)
    end = time_whole(whole(clock, wrapped), [ait.handle(wrapped)], never)
    assert end.put_back == ()
    assert end.speedup == pytest.approx(0.5, rel=0.01)
    assert backend.open_engines == 1


def test_when_time_is_up_nothing_is_timed(clock, tuned):
    wrapped, _ = tuned("a", 0.5)
    assert time_whole(whole(clock, wrapped), [ait.handle(wrapped)], lambda: True) is None
