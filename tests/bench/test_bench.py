"""The bench takes a candidate from recipe to verdict; time is a fake clock's."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from aitune.exceptions import BackendNotInstalledError, BackendUnsupportedError, CorrectnessError
from aitune.testing import (
    FunctionBackend,
    FunctionBackendConfig,
    TimedModule,
    failing_backend,
    fake_bench,
    timed_backend,
)
from aitune.torch.bench import Rules
from aitune.torch.trial import ORIGINAL, Verdict


def test_a_faster_right_candidate_is_accepted_with_its_figures():
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        trial = bench.try_(timed_backend("quick", 0.5))
    assert trial.verdict is Verdict.accepted
    assert trial.speedup == pytest.approx(2.0)
    assert trial.speedup_low == pytest.approx(2.0)
    assert trial.batch_size == 4
    assert trial.latency_ms == pytest.approx(0.7)
    assert trial.throughput == pytest.approx(4 / 0.7e-3)
    assert trial.precision == "float32"
    assert trial.error is not None
    assert trial.error <= trial.error_bound == 1e-4


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RuntimeError("boom"), Verdict.build_failed),
        (MemoryError(), Verdict.out_of_memory),
        (torch.OutOfMemoryError("CUDA out of memory"), Verdict.out_of_memory),
        (BackendUnsupportedError("b", "no such operator"), Verdict.unsupported),
        (BackendNotInstalledError("b", "lib", "extra"), Verdict.not_installed),
    ],
)
def test_a_build_that_raises_is_a_verdict(error, verdict):
    with fake_bench() as bench:
        trial = bench.try_(failing_backend(error=error))
        assert trial.verdict is verdict
        assert bench.error(trial) is error
        assert trial.reason


def test_a_candidate_that_computes_something_else_is_wrong():
    backend = timed_backend("wrong", 0.1, answer=lambda x: x * 2.01)
    with fake_bench() as bench:
        trial = bench.try_(backend)
        assert trial.verdict is Verdict.wrong
        assert trial.error == pytest.approx(0.005, rel=0.01)
        assert isinstance(bench.error(trial), CorrectnessError)
    assert backend.open_engines == 0


def test_a_candidate_that_is_wrong_once_in_twenty_calls_is_found():
    calls = []

    def answer(x):
        calls.append(1)
        return x * (3 if len(calls) > 30 and len(calls) % 20 == 0 else 2)

    with fake_bench() as bench:
        assert bench.try_(timed_backend("moody", 0.1, answer=answer)).verdict is Verdict.wrong


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("latency_budget", [None, 1.0])
@pytest.mark.parametrize("correctness", [True, False])
def test_what_is_measured_does_not_depend_on_the_mode_of_the_caller(mode, latency_budget, correctness):
    def into_ordinary_memory(x):  # as engines of libraries write their outputs
        with torch.inference_mode(False), torch.no_grad():
            return x.clone() * 2

    class Noting(TimedModule):
        def forward(self, x):
            seen.append(torch.is_inference_mode_enabled())
            return super().forward(x)

    seen: list[bool] = []
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        rules = Rules(latency_budget=latency_budget, correctness=correctness)
        with fake_bench(rules=rules, module=Noting()) as bench:
            trial = bench.try_(timed_backend("quick", 0.5, into_ordinary_memory))
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    assert trial.verdict is Verdict.accepted, trial.reason
    assert correctness or set(seen) == {False}  # the check asks in inference mode, too


@pytest.mark.parametrize(
    ("fraction", "verdict"), [(1.05, Verdict.slower), (1.0, Verdict.slower), (0.97, Verdict.accepted)]
)
def test_a_candidate_must_gain_a_percent(fraction, verdict):
    with fake_bench() as bench:
        assert bench.try_(timed_backend("c", fraction)).verdict is verdict


def test_without_performance_validation_a_slower_candidate_is_accepted_and_measured():
    with fake_bench(rules=Rules(performance=False)) as bench:
        trial = bench.try_(timed_backend("slow", 2.0))
    assert trial.verdict is Verdict.accepted
    assert trial.speedup == pytest.approx(0.5)


def test_a_candidate_whose_calls_the_original_answered_is_no_candidate():
    with fake_bench(fallbacks=lambda: {"weights changed": 3}) as bench:
        trial = bench.try_(timed_backend("c", 0.5))
        assert trial.verdict is Verdict.unsupported
        assert "weights changed (3 calls)" in trial.reason
    with fake_bench(fallbacks=lambda: {"engine failed": 1}) as bench:
        assert bench.try_(timed_backend("c", 0.5)).verdict is Verdict.build_failed


def test_engines_that_are_not_taken_are_closed():
    backends = [timed_backend("a", 0.5), timed_backend("b", 0.6)]
    with fake_bench() as bench:
        trials = [bench.try_(backend) for backend in backends]
        assert [backend.open_engines for backend in backends] == [1, 1]
        bench.close_losers(keep=trials[0])
        assert [backend.open_engines for backend in backends] == [1, 0]
        engine = bench.take(trials[0])
    assert backends[0].open_engines == 1
    engine.close()
    with fake_bench() as bench:
        bench.try_(backends[0])
    assert backends[0].open_engines == 0


def test_only_an_accepted_trial_can_be_taken():
    with fake_bench() as bench:
        assert bench.take(bench.original()) is None
        with pytest.raises(ValueError, match="slower"):
            bench.take(bench.try_(timed_backend("slow", 2.0)))
    assert bench.original().backend == ORIGINAL


def test_the_batch_size_is_searched_while_throughput_grows_and_widens_the_range():
    with fake_bench() as bench:
        trial = bench.try_(timed_backend("quick", 0.5))
        # 1 ms and 0.1 ms a row: throughput grows by 5 % up to 128 rows (13.8 ms) and by 3.8 % to 256
        assert trial.batch_size == 128
        assert bench.graph.batch_dim.max == 128
        assert "batch size 128" in bench.notes[0]


def test_for_latency_the_search_widens_the_range_and_the_smallest_batch_is_measured_all_the_same():
    with fake_bench(rules=Rules(smallest=True)) as bench:
        assert bench.try_(timed_backend("quick", 0.5)).batch_size == 1
        assert bench.graph.batch_dim.max == 128
        assert "served up to batch size 128" in bench.notes[0]
    with fake_bench(rules=Rules(smallest=True, find_batch_size=False)) as bench:
        assert bench.try_(timed_backend("quick", 0.5)).batch_size == 1
        assert bench.graph.batch_dim.max == 4


def test_a_module_that_takes_no_larger_batch_is_measured_at_the_largest_it_takes():
    module = TimedModule()
    table = torch.ones(9, 1)
    module.forward = lambda x: TimedModule.forward(module, x) * table[: len(x)]
    with fake_bench(module=module) as bench:
        trial = bench.try_(timed_backend("quick", 0.5))
        assert trial.verdict is Verdict.accepted
        assert (trial.batch_size, bench.graph.batch_dim.max) == (8, 8)
        assert "does not take batch size 16: RuntimeError" in bench.notes[0]


def test_after_the_deadline_nothing_is_begun():
    backend = timed_backend("late", 0.5)
    module = TimedModule()
    module.clock.sleep(10)
    for options in ({"deadline": 5.0}, {"rules": Rules(time_limit=1.0)}):
        with fake_bench(module=module, **options) as bench:
            module.clock.sleep(2)
            assert bench.try_(backend).verdict is Verdict.skipped
    assert backend.builds == 0


def test_a_trial_leaves_no_trace_in_module_and_process(unchanged_torch_state):
    module = TimedModule()
    module.register_buffer("seen", torch.zeros(1))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    bench = fake_bench(module=module)
    with unchanged_torch_state(), bench:
        bench.try_(timed_backend("quick", 0.5))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def small_batches_only(x):
    if len(x) > 2:
        raise RuntimeError("called outside its range")
    return x * 2


def large_batches_only(x):
    if len(x) != 4:
        raise RuntimeError("called outside its range")
    return x * 2


def test_an_engine_that_serves_a_part_of_the_range_is_tried_there_and_nowhere_else():
    backend = timed_backend("part", 0.5, answer=large_batches_only, ranges={"batch0": (4, 4)})
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        trial = bench.try_(backend)
        assert trial.verdict is Verdict.accepted, trial.reason
        assert "serves less than the graph" in trial.evidence
        assert trial.batch_size == 4
        assert trial.error is not None


def test_a_wrong_answer_within_the_part_is_found():
    backend = timed_backend("part", 0.5, answer=lambda x: large_batches_only(x) * 1.01, ranges={"batch0": (4, 4)})
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        assert bench.try_(backend).verdict is Verdict.wrong


def test_an_engine_that_serves_no_measured_call_is_unsupported():
    backend = timed_backend("part", 0.5, answer=small_batches_only, ranges={"batch0": (1, 2)})
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        trial = bench.try_(backend)
    assert trial.verdict is Verdict.unsupported
    assert trial.reason == "no call that is measured is among those that it serves: serves less than the graph"
    assert backend.open_engines == 0


def test_builders_are_told_the_batch_size_to_aim_at():
    seen = []
    with fake_bench(rules=Rules(find_batch_size=False, smallest=True)) as bench:
        bench.try_(FunctionBackend(lambda job: seen.append(job.graph.batch_dim.opt)))
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        bench.try_(FunctionBackend(lambda job: seen.append(job.graph.batch_dim.opt)))
    assert seen == [1, 4]


def test_a_candidate_that_gains_at_large_batches_and_loses_on_the_recorded_calls_is_turned_away():
    module = TimedModule()

    def make(job):
        def run(x):
            module.clock.work((0.5 if len(x) > 8 else 2.0) * module.duration(x))
            return x * 2

        return run

    with fake_bench(module=module) as bench:
        trial = bench.try_(FunctionBackend(make, FunctionBackendConfig(label="large")))
        assert trial.verdict is Verdict.slower
        assert "faster at batch size" in trial.reason
        assert "not on the recorded calls" in trial.reason
        assert trial.speedup > 1.5
        assert bench.try_(timed_backend("both", 0.8)).accepted


@pytest.mark.parametrize("seconds", [0.2, 1.0])
@pytest.mark.parametrize(("every", "slow"), [(5, 6.0), (20, 20.0)])
def test_a_long_call_that_is_slow_now_and_then_gains_nothing(seconds, every, slow):
    module = TimedModule(seconds=seconds, seconds_a_row=0.0)

    def make(job):
        made = count()

        def run(x):
            job.module.clock.work(seconds * (slow if next(made) % every == every - 1 else 0.6))
            return x * 2

        return run

    trial = fake_bench(module=module).try_(FunctionBackend(make, FunctionBackendConfig(label="now and then")))
    assert trial.verdict in (Verdict.slower, Verdict.undecided), trial


def test_a_long_call_that_is_always_quick_is_not_measured_twice():
    module = TimedModule(seconds=0.2, seconds_a_row=0.0)
    trial = fake_bench(module=module).try_(timed_backend("quick", 0.6))
    assert trial.accepted
    assert module.clock.now() < 0.2 * 2 * (2 * 40 + 100), "two samples a pass, ten pairs, a hundred compared"
