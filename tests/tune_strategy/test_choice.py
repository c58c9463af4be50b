"""What each strategy chooses, on a fake clock."""

from __future__ import annotations

import pytest

import aitune.torch as ait
from aitune.exceptions import CorrectnessError
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch.trial import ORIGINAL, Trial


def broken(label="broken"):
    def build(job):
        raise RuntimeError("cannot build")

    return FunctionBackend(build, FunctionBackendConfig(label=label))


def chosen(bench_of, strategy):
    with bench_of(strategy) as bench:
        trial = strategy.choose(bench)
        engine = bench.take(trial)
        labels = [one.backend for one in bench.trials]
    if engine is not None:
        engine.close()
    return trial.backend.removeprefix("FunctionBackend(label='").removesuffix("')"), len(labels)


def test_max_throughput_takes_the_fastest_of_all(bench_of, candidate):
    backends = [candidate("a", 0.8), broken(), candidate("b", 0.5), candidate("slow", 1.5), candidate("c", 0.7)]
    assert chosen(bench_of, ait.MaxThroughputStrategy(backends)) == ("b", 5)
    assert [backend.open_engines for backend in backends] == [0] * 5


def test_max_throughput_leaves_the_original_where_nothing_beats_it(bench_of, candidate):
    assert chosen(bench_of, ait.MaxThroughputStrategy([candidate("slow", 1.2), broken()])) == (ORIGINAL, 2)


def test_max_throughput_without_validation_takes_the_fastest_even_if_it_is_slower(bench_of, candidate):
    strategy = ait.MaxThroughputStrategy([candidate("a", 2.0), candidate("b", 1.5)])
    strategy.enable_performance_validation(False)
    assert chosen(bench_of, strategy) == ("b", 2)


def test_between_equals_the_exact_one_and_then_the_earlier_listed_wins(bench_of, candidate):
    coarse, exact = candidate("coarse", 0.5, precision="bfloat16"), candidate("exact", 0.5)
    assert chosen(bench_of, ait.MaxThroughputStrategy([coarse, exact]))[0] == "exact"
    assert chosen(bench_of, ait.MaxThroughputStrategy([candidate("first", 0.5), exact]))[0] == "first"


def test_first_wins_stops_at_the_first_that_is_right_and_faster(bench_of, candidate):
    wrong = candidate("wrong", 0.1, answer=lambda x: x)
    backends = [broken(), wrong, candidate("slow", 1.1), candidate("good", 0.9), candidate("best", 0.5)]
    assert chosen(bench_of, ait.FirstWinsStrategy(backends)) == ("good", 4)
    assert backends[-1].builds == 0


def test_first_wins_leaves_the_original_where_all_fail(bench_of, candidate):
    assert chosen(bench_of, ait.FirstWinsStrategy([broken(), candidate("slow", 1.1)])) == (ORIGINAL, 2)


def test_one_backend_takes_it_if_it_is_faster_and_the_original_if_not(bench_of, candidate):
    assert chosen(bench_of, ait.OneBackendStrategy(candidate("quick", 0.5))) == ("quick", 1)
    assert chosen(bench_of, ait.OneBackendStrategy(candidate("slow", 1.5))) == (ORIGINAL, 1)
    slow = ait.OneBackendStrategy(candidate("slow", 1.5)).enable_performance_validation(False)
    assert chosen(bench_of, slow) == ("slow", 1)


def test_one_backend_raises_what_its_backend_raised(bench_of, candidate):
    with pytest.raises(RuntimeError, match="cannot build"):
        chosen(bench_of, ait.OneBackendStrategy(broken()))
    with pytest.raises(CorrectnessError):
        chosen(bench_of, ait.OneBackendStrategy(candidate("wrong", 0.5, answer=lambda x: x)))


def test_scenario_40_a_candidate_that_is_slower_by_design_is_never_chosen(bench_of, candidate, clock, count):
    from aitune.testing import Disturbance

    clock._disturbance = Disturbance(noise=0.02, drift=0.02, burst_rate=0.5)
    strategy = ait.MaxThroughputStrategy([candidate("slower", 1.05)])
    assert all(chosen(bench_of, strategy)[0] == ORIGINAL for _ in range(count(10, 100)))


def test_one_instance_serves_many_graphs_and_keeps_nothing(bench_of, candidate):
    strategy = ait.MaxThroughputStrategy([candidate("a", 0.5)])
    before = dict(vars(strategy))
    chosen(bench_of, strategy)
    assert vars(strategy) == before


def test_a_custom_strategy_is_a_class_with_one_method(bench_of, candidate):
    class SecondBest(ait.TuneStrategy):
        def __init__(self, backends, **options):
            super().__init__(**options)
            self.backends = backends

        def choose(self, bench: ait.Bench) -> Trial:
            accepted = [trial for trial in map(bench.try_, self.backends) if trial.accepted]
            accepted.sort(key=lambda trial: -trial.throughput)
            return accepted[1] if len(accepted) > 1 else bench.original()

    backends = [candidate("a", 0.5), candidate("b", 0.6), candidate("c", 0.7)]
    assert chosen(bench_of, SecondBest(backends)) == ("b", 3)


def test_strategies_describe_themselves_without_defaults():
    strategy = ait.MaxThroughputStrategy(min_speedup_ratio=0.1).enable_correctness_check(False)
    assert strategy.describe() == "MaxThroughputStrategy(min_speedup_ratio=0.1).enable_correctness_check(False)"
    assert repr(ait.FirstWinsStrategy([broken("x")])).startswith("FirstWinsStrategy(backends=[FunctionBackend(")
