"""The quickest single call wins, also where another is quicker with many rows."""

from __future__ import annotations

import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig, TimedModule, fake_bench, timed_backend
from aitune.torch.trial import ORIGINAL


def backend_with(label, seconds, seconds_a_row):
    """Make a backend whose calls take ``seconds`` and some more for each row."""

    def make(job):
        def run(x):
            job.module.clock.work(seconds + seconds_a_row * len(x))
            return x * 2

        return run

    return FunctionBackend(make, FunctionBackendConfig(label=label))


def chosen(strategy, **options):
    with fake_bench(strategy, **options) as bench:
        return strategy.choose(bench)


def test_the_quickest_with_one_row_wins_and_max_throughput_takes_the_other():
    # The module: 1 ms a call and 0.1 ms a row.
    quick_call = backend_with("quick call", 0.1e-3, 0.09e-3)
    quick_rows = backend_with("quick rows", 0.9e-3, 0.01e-3)

    trial = chosen(ait.MinLatencyStrategy([quick_rows, quick_call]))

    assert "quick call" in trial.backend
    assert (trial.batch_size, round(trial.latency_ms, 2)) == (1, 0.19)
    assert "quick rows" in chosen(ait.MaxThroughputStrategy([quick_rows, quick_call])).backend


def test_what_is_slower_with_one_row_is_not_used_however_quick_it_is_with_many():
    assert chosen(ait.MinLatencyStrategy([backend_with("rows", 1.2e-3, 0.0)])).backend == ORIGINAL


def test_equally_quick_ones_are_told_apart_by_precision_and_then_by_order():
    coarse, exact = timed_backend("coarse", 0.5, precision="bfloat16"), timed_backend("exact", 0.5)
    assert "exact" in chosen(ait.MinLatencyStrategy([coarse, exact])).backend
    assert "first" in chosen(ait.MinLatencyStrategy([timed_backend("first", 0.5), exact])).backend


def test_no_larger_batch_is_searched_unless_it_is_asked_for():
    strategy = ait.MinLatencyStrategy([timed_backend("quick", 0.5)])
    with fake_bench(strategy) as bench:
        strategy.choose(bench)
        assert (bench.graph.batch_dim.max, bench.notes) == (4, ())

    strategy.enable_find_max_batch_size()
    with fake_bench(strategy) as bench:
        assert strategy.choose(bench).batch_size == 1
        assert bench.graph.batch_dim.max > 4
    assert strategy.describe().endswith(".enable_find_max_batch_size(True)")


def test_without_a_row_of_its_own_the_smallest_recorded_batch_counts():
    model = torch.nn.Linear(3, 3).eval()
    quick = ait.ProfilingConfig(max_seconds=0.1)
    strategy = ait.MinLatencyStrategy([ait_eager()], profiling_config=quick).enable_performance_validation(False)
    result = ait.tune(ait.Module(model, "m", strategy), list(torch.randn(8, 3)), batch_sizes=[2, 4], device="cpu")

    assert [trial.batch_size for trial in result.modules["m"].graphs[0].trials] == [2]


def ait_eager():
    return FunctionBackend(lambda job: lambda input: job.forward(input))  # noqa: A006


def test_losers_are_closed():
    backends = [timed_backend("a", 0.5), timed_backend("b", 0.4)]
    module = TimedModule()
    strategy = ait.MinLatencyStrategy(backends)
    with fake_bench(strategy, module=module) as bench:
        engine = bench.take(strategy.choose(bench))
    assert [backend.open_engines for backend in backends] == [0, 1]
    engine.close()
