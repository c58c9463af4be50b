"""What each strategy chooses, on a fake clock."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import CorrectnessError
from aitune.testing import Disturbance, FakeClock, TimedModule, failing_backend, fake_bench, timed_backend
from aitune.torch.trial import ORIGINAL, Trial


def chosen(strategy, **options):
    with fake_bench(strategy, **options) as bench:
        trial = strategy.choose(bench)
        engine = bench.take(trial)
        labels = [one.backend for one in bench.trials]
    if engine is not None:
        engine.close()
    return trial.backend.removeprefix("FunctionBackend(label='").removesuffix("')"), len(labels)


def test_max_throughput_takes_the_fastest_of_all():
    backends = [timed_backend("a", 0.8), failing_backend(), timed_backend("b", 0.5), timed_backend("slow", 1.5)]
    assert chosen(ait.MaxThroughputStrategy(backends)) == ("b", 4)
    assert [backend.open_engines for backend in backends] == [0] * 4


def test_max_throughput_leaves_the_original_where_nothing_beats_it():
    assert chosen(ait.MaxThroughputStrategy([timed_backend("slow", 1.2), failing_backend()])) == (ORIGINAL, 2)


def test_max_throughput_without_validation_takes_the_fastest_even_if_it_is_slower():
    strategy = ait.MaxThroughputStrategy([timed_backend("a", 2.0), timed_backend("b", 1.5)])
    strategy.enable_performance_validation(False)
    assert chosen(strategy) == ("b", 2)


def test_between_equals_the_exact_one_and_then_the_earlier_listed_wins():
    coarse, exact = timed_backend("coarse", 0.5, precision="bfloat16"), timed_backend("exact", 0.5)
    assert chosen(ait.MaxThroughputStrategy([coarse, exact]))[0] == "exact"
    assert chosen(ait.MaxThroughputStrategy([timed_backend("first", 0.5), exact]))[0] == "first"


def test_first_wins_stops_at_the_first_that_is_right_and_faster():
    bad = [failing_backend(), timed_backend("wrong", 0.1, answer=lambda x: x), timed_backend("slow", 1.1)]
    backends = [*bad, timed_backend("good", 0.9), timed_backend("best", 0.5)]
    assert chosen(ait.FirstWinsStrategy(backends)) == ("good", 4)
    assert backends[-1].builds == 0


def test_first_wins_leaves_the_original_where_all_fail():
    assert chosen(ait.FirstWinsStrategy([failing_backend(), timed_backend("slow", 1.1)])) == (ORIGINAL, 2)


def test_one_backend_takes_it_if_it_is_faster_and_the_original_if_not():
    assert chosen(ait.OneBackendStrategy(timed_backend("quick", 0.5))) == ("quick", 1)
    assert chosen(ait.OneBackendStrategy(timed_backend("slow", 1.5))) == (ORIGINAL, 1)
    slow = ait.OneBackendStrategy(timed_backend("slow", 1.5)).enable_performance_validation(False)
    assert chosen(slow) == ("slow", 1)


def test_one_backend_raises_what_its_backend_raised():
    with pytest.raises(RuntimeError, match="cannot build"):
        chosen(ait.OneBackendStrategy(failing_backend()))
    with pytest.raises(CorrectnessError):
        chosen(ait.OneBackendStrategy(timed_backend("wrong", 0.5, answer=lambda x: x)))


def test_scenario_40_a_candidate_that_is_slower_by_design_is_never_chosen(count):
    strategy = ait.MaxThroughputStrategy([timed_backend("slower", 1.05)])
    noise = Disturbance(noise=0.02, drift=0.02, burst_rate=0.5)
    modules = [TimedModule(FakeClock(seed, noise)) for seed in range(count(10, 100))]
    assert all(chosen(strategy, module=module)[0] == ORIGINAL for module in modules)


@pytest.mark.parametrize(
    ("check", "tried"),
    [
        (None, False),
        (ait.Check(max_error=1e-3), False),
        (ait.Check(max_error=0.1), True),
        (ait.Check(metric=lambda forward: 1.0, budget=0.01), True),
    ],
)
def test_int8_is_among_the_defaults_only_where_a_check_allows_for_it(check, tried):
    planned = ait.MaxThroughputStrategy(check=check).candidates(torch.device("cpu"))
    assert any(backend.describe() == "TorchAOBackend(quantization='int8dq')" for backend in planned) == tried

    # The check of the tune counts where the strategy has none. So little time that nothing is built.
    model = ait.Module(torch.nn.Linear(3, 3).eval(), "m")
    result = ait.tune(model, list(torch.randn(4, 3)), device="cpu", check=check, time_limit=1e-9)
    names = [trial.backend for trial in result.modules["m"].graphs[0].trials]
    assert any(name.startswith("TorchAOBackend") for name in names) == tried


def test_one_instance_serves_many_graphs_and_keeps_nothing():
    strategy = ait.MaxThroughputStrategy([timed_backend("a", 0.5)])
    before = dict(vars(strategy))
    chosen(strategy)
    assert vars(strategy) == before


def test_a_custom_strategy_is_a_class_with_one_method():
    class SecondBest(ait.TuneStrategy):
        def __init__(self, backends, **options):
            super().__init__(**options)
            self.backends = backends

        def choose(self, bench: ait.Bench) -> Trial:
            accepted = [trial for trial in map(bench.try_, self.backends) if trial.accepted]
            accepted.sort(key=lambda trial: -trial.throughput)
            return accepted[1] if len(accepted) > 1 else bench.original()

    backends = [timed_backend("a", 0.5), timed_backend("b", 0.6), timed_backend("c", 0.7)]
    assert chosen(SecondBest(backends)) == ("b", 3)


def test_strategies_describe_themselves_without_defaults():
    strategy = ait.MaxThroughputStrategy(min_speedup_ratio=0.1).enable_correctness_check(False)
    assert strategy.describe() == "MaxThroughputStrategy(min_speedup_ratio=0.1).enable_correctness_check(False)"
    first = ait.FirstWinsStrategy([failing_backend("x")])
    assert repr(first).startswith("FirstWinsStrategy(backends=[FunctionBackend(")
