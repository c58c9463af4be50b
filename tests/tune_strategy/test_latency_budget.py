"""The most throughput within a latency: each candidate at the batch size that suits it."""

from __future__ import annotations

import logging
import pickle

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError, LatencyBudgetError
from aitune.testing import FunctionBackend, FunctionBackendConfig, TimedModule, fake_bench, timed_backend
from aitune.torch.trial import ORIGINAL, Verdict


def chosen(strategy, **options):
    with fake_bench(strategy, **options) as bench:
        trial = strategy.choose(bench)
        return trial, bench.trials, bench


def stalling(label, fraction, every, seconds):
    """Make a backend like ``timed_backend`` that stalls at one call in ``every``."""

    def make(job):
        calls = []

        def run(x):
            calls.append(1)
            job.module.clock.work(fraction * job.module.duration(x) + (seconds if len(calls) % every == 0 else 0.0))
            return x * 2

        return run

    return FunctionBackend(make, FunctionBackendConfig(label=label))


def test_each_candidate_counts_at_the_largest_batch_that_it_answers_in_time():
    # 1 ms a call and 0.1 ms a row: within 5 ms the module takes 40 rows, 32 as a power of two; at half of its time
    # a candidate takes 90 and 64.
    trial, _, _ = chosen(ait.LatencyBudgetStrategy(5.0, [timed_backend("half", 0.5)]))

    assert trial.batch_size == 64
    assert trial.latency_ms == pytest.approx(3.7)
    assert trial.throughput == pytest.approx(64 / 3.7e-3)
    assert trial.speedup == pytest.approx((64 / 3.7e-3) / (32 / 4.2e-3), rel=1e-3)
    assert "p99 3.7 ms at batch size 64, within a budget of 5 ms" in trial.evidence


def test_the_highest_throughput_wins_among_those_within_the_budget():
    backends = [timed_backend("a", 0.8), timed_backend("b", 0.5), timed_backend("c", 0.6)]
    trial, trials, _ = chosen(ait.LatencyBudgetStrategy(5.0, backends))

    assert "b" in trial.backend.split("'")
    assert len(trials) == 3
    assert not any(backend.open_engines for backend in backends)


def test_what_stalls_at_one_call_in_fifty_is_over_the_budget_though_its_median_is_the_best():
    steady, moody = timed_backend("steady", 0.8), stalling("moody", 0.3, every=50, seconds=0.1)
    trial, trials, _ = chosen(ait.LatencyBudgetStrategy(20.0, [moody, steady]))

    assert "steady" in trial.backend
    assert trials[0].verdict is Verdict.slower
    assert trials[0].reason.startswith("over the latency budget of 20 ms: p99 ")


def test_the_original_is_chosen_where_it_fits_and_nothing_is_better():
    trial, trials, _ = chosen(ait.LatencyBudgetStrategy(5.0, [timed_backend("slow", 1.1)]))

    assert trial.backend == ORIGINAL
    assert trials[0].verdict is Verdict.slower


def test_a_candidate_that_fits_is_chosen_where_the_original_does_not():
    trial, _, _ = chosen(ait.LatencyBudgetStrategy(1.0, [timed_backend("half", 0.5)]))

    assert "half" in trial.backend
    assert trial.batch_size == 8  # 0.9 ms


def test_a_candidate_that_is_typically_slower_is_chosen_where_the_original_stalls():
    class Stalling(TimedModule):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            if type(self).calls % 20 == 0:
                self.clock.work(0.1)
            return super().forward(x)

    trial, _, _ = chosen(ait.LatencyBudgetStrategy(10.0, [timed_backend("steady", 1.05)]), module=Stalling())

    assert "steady" in trial.backend


def test_where_nothing_fits_it_says_what_came_nearest_and_by_how_much():
    backends = [timed_backend("half", 0.5), timed_backend("slow", 2.0)]
    strategy = ait.LatencyBudgetStrategy(0.3, backends)
    with fake_bench(strategy) as bench, pytest.raises(LatencyBudgetError) as caught:
        strategy.choose(bench)

    assert "half" in caught.value.nearest
    assert (caught.value.p99_ms, caught.value.batch_size) == (pytest.approx(0.55), 1)
    assert "nearest is FunctionBackend(label='half') with a p99 of 0.55 ms at batch size 1" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).budget_ms == 0.3
    assert not any(backend.open_engines for backend in backends)


def test_without_validation_a_candidate_need_not_beat_the_original_but_must_fit():
    slower = ait.LatencyBudgetStrategy(5.0, [timed_backend("slow", 1.2)]).enable_performance_validation(False)
    assert "slow" in chosen(slower)[0].backend

    late = ait.LatencyBudgetStrategy(1.2, [timed_backend("late", 3.0)]).enable_performance_validation(False)
    assert chosen(late)[0].backend == ORIGINAL


def test_without_the_search_no_batch_is_larger_than_the_recorded_ones():
    strategy = ait.LatencyBudgetStrategy(5.0, [timed_backend("half", 0.5)]).enable_find_max_batch_size(False)
    trial, _, bench = chosen(strategy)

    assert trial.batch_size == 4
    assert bench.graph.batch_dim.max == 4


@pytest.mark.parametrize("budget", [0, -1.0, float("inf"), float("nan"), True, "5", None])
def test_a_budget_that_is_no_time_is_refused(budget):
    with pytest.raises(AITuneUserInputError, match="latency_budget_ms must be milliseconds above 0"):
        ait.LatencyBudgetStrategy(budget)


def test_it_describes_itself_with_its_budget():
    assert repr(ait.LatencyBudgetStrategy(5)) == "LatencyBudgetStrategy(latency_budget_ms=5)"


@pytest.fixture
def impossible():
    """A wrapped module whose strategy asks for an answer within a nanosecond."""
    quick = ait.ProfilingConfig(max_seconds=0.1)
    backend = FunctionBackend(lambda job: lambda input: job.forward(input))  # noqa: A006
    strategy = ait.LatencyBudgetStrategy(1e-6, [backend], profiling_config=quick).enable_find_max_batch_size(False)
    return ait.Module(torch.nn.Linear(3, 3).eval(), "m", strategy)


def test_in_a_tune_the_original_stays_with_a_warning_and_the_result_shows_the_nearest(impossible, caplog):
    with caplog.at_level(logging.WARNING, logger="aitune"):
        result = ait.tune(impossible, list(torch.randn(4, 3)), device="cpu")

    assert result.modules["m"].state == "failed"
    assert "nearest is" in result.failures["m"]
    assert " ms at batch size 1" in result.failures["m"]
    (record,) = [record for record in caplog.records if "latency budget" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert impossible(torch.ones(2, 3)).shape == (2, 3)


def test_in_a_tune_that_may_not_ignore_failures_it_is_raised(impossible):
    with pytest.raises(LatencyBudgetError):
        ait.tune(impossible, list(torch.randn(4, 3)), device="cpu", ignore_failing_modules=False)
