"""Every argument of the public callables has an effect; the last test holds this list against the signatures."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
from pathlib import Path

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch import events

argument = pytest.mark.argument


def only(result):
    (module,) = result.modules.values()
    return module


def inputs_of(result):
    return only(result).graphs[0].inputs[0]


# ------------------------------------------------------------------------------------------------ tune


@argument("tune", "func", "dataset")
def test_func_is_run_on_the_dataset_and_the_modules_it_calls_are_tuned(model, samples, always):
    wrapped, other = (
        ait.Module(model, "called", always()),
        ait.Module(torch.nn.ReLU(), "not called", always()),
    )
    calls = []

    def func(x):
        calls.append(x.shape)
        return wrapped(x)

    result = ait.tune(func, samples)
    assert list(result.modules) == ["called"]
    assert set(calls) == {(1, 4), (2, 4)}
    assert wrapped.state is ait.ModuleState.TUNED
    assert other.state is ait.ModuleState.INIT


@argument("tune", "batch_sizes")
def test_batch_sizes_are_the_range(model, samples, always):
    result = ait.tune(ait.Module(model, strategy=always()), samples, batch_sizes=[1, 8])
    assert "batch0=1..8" in inputs_of(result)


@argument("tune", "max_num_batches_per_batch_size")
def test_max_num_batches_bounds_the_calls(model, samples, always):
    wrapped, calls = ait.Module(model, strategy=always()), []
    heard = []
    ait.tune(
        lambda x: calls.append(x) or wrapped(x),
        samples,
        max_num_batches_per_batch_size=3,
        progress=lambda event: heard.append(event) if isinstance(event, events.Recorded) else None,
    )
    assert [event.batch_size for event in heard] == [1, 1, 1, 2, 2, 2]


@argument("tune", "device")
def test_device_moves_the_module_and_it_stays(model, samples, always):
    model = model.to("meta")
    model = model.to_empty(device="cpu")
    wrapped = ait.Module(model, strategy=always())
    with pytest.raises(AITuneUserInputError, match="cuda"):
        ait.tune(wrapped, samples, device="cuda:99")
    ait.tune(wrapped, samples, device="cpu")
    assert ait.handle(wrapped).device == torch.device("cpu")


@argument("tune", "device")
def test_device_is_where_the_module_is_recorded(model, samples):
    wrapped = ait.Module(model, "m")
    ait.tune(wrapped, samples, device="meta", dry_run=False, batch_sizes=[1, 2], progress=False)
    assert ait.handle(wrapped).device == torch.device("meta")


@argument("tune", "dry_run")
def test_a_dry_run_prints_the_plan_and_changes_nothing(model, samples, always, capsys):
    backend = FunctionBackend(lambda job: job.forward, FunctionBackendConfig(label="planned"))
    wrapped = ait.Module(model, "m", always(backend))
    before = dict(model.__dict__)
    result = ait.tune(wrapped, samples, dry_run=True)
    assert backend.builds == 0
    assert model.__dict__ == before
    assert wrapped.state is ait.ModuleState.INIT
    assert "planned" in capsys.readouterr().out
    assert result.dry_run


@argument("tune", "disable_external_logging")
def test_other_libraries_can_be_silenced(model, samples, caplog, double_agent):
    noisy = logging.getLogger("some.library")

    def make(job):
        noisy.error("noise")
        logging.getLogger("made.late").error("noise")
        return job.forward

    seen = {}
    for silent in (False, True):
        caplog.clear()

        def func(x, wrapped):
            noisy.error("noise")
            return wrapped(x)

        wrapped = ait.Module(model, "m", ait.OneBackendStrategy(FunctionBackend(make)))
        with caplog.at_level(logging.INFO):
            ait.tune(lambda x, w=wrapped: func(x, w), samples, disable_external_logging=silent)
        seen[silent] = {record.name.split(".")[0] for record in caplog.records}
        wrapped.untune()
    assert "some" in seen[False]
    assert seen[True] == {"aitune"}
    assert not noisy.disabled


@argument("tune", "clear_cache")
def test_clear_cache_removes_what_earlier_tunes_left_and_nothing_else(model, samples, always, cache_dir):
    wrapped = ait.Module(model, "m", always())
    mine, earlier = cache_dir / "builds" / "mine", cache_dir / "builds" / "20260101-000000-abcdefgh"
    for folder in (mine, earlier):
        folder.mkdir(parents=True)
        (folder / "build.log").write_text("output")
    ait.tune(wrapped, samples)
    os.utime(earlier)  # as new as this tune
    assert earlier.exists()
    ait.tune(wrapped, samples, clear_cache=True)
    assert not earlier.exists()
    assert mine.exists()


@argument("tune", "ignore_failing_modules")
def test_a_failing_module_is_left_alone_or_raises(model, samples, unlucky, caplog):
    wrapped = ait.Module(model, "m", ait.OneBackendStrategy(unlucky))
    before = dict(model.__dict__)
    result = ait.tune(wrapped, samples)
    assert only(result).state == "failed"
    assert [record.levelname for record in caplog.records if record.levelname == "ERROR"] == ["ERROR"]
    with pytest.raises(RuntimeError, match="no luck today"):
        result.raise_for_failures()
    with pytest.raises(RuntimeError, match="no luck today"):
        ait.tune(wrapped, samples, ignore_failing_modules=False)
    assert model.__dict__ == before


@argument("tune", "time_limit")
def test_when_time_is_up_no_candidate_is_begun(model, samples, double_agent):
    backends = [double_agent(f"b{i}") for i in range(3)]
    result = ait.tune(ait.Module(model, "m", ait.MaxThroughputStrategy(backends)), samples, time_limit=1e-6)
    trials = only(result).graphs[0].trials
    assert [trial.verdict for trial in trials] == [ait.Verdict.skipped] * 3
    assert "time limit" in trials[0].reason
    assert not result.complete
    assert sum(backend.builds for backend in backends) == 0


@argument("tune", "backend_time_limit")
def test_backend_time_limit_is_checked(model, samples, always):
    wrapped = ait.Module(model, "m", always())
    with pytest.raises(AITuneUserInputError, match="backend_time_limit"):
        ait.tune(wrapped, samples, backend_time_limit=0)
    ait.tune(wrapped, samples, backend_time_limit=10)


@argument("tune", "progress")
def test_progress_shows_lines_or_nothing_or_calls_a_function(model, samples, always, capsys):
    wrapped, heard = ait.Module(model, "m", always()), []
    ait.tune(wrapped, samples, progress=False)
    assert capsys.readouterr().err == ""
    ait.tune(wrapped, samples, progress=True)
    assert "m" in capsys.readouterr().err
    ait.tune(wrapped, samples, progress=heard.append)
    kinds = [type(event) for event in heard]
    assert kinds[0] is events.TuneStarted
    assert kinds[-1] is events.TuneFinished
    for kind in (
        events.Recorded,
        events.ModuleStarted,
        events.GraphStarted,
        events.StageStarted,
        events.TrialFinished,
    ):
        assert kind in kinds
    with pytest.raises(AITuneUserInputError, match="progress"):
        ait.tune(wrapped, samples, progress="yes")


@argument("tune", "check")
def test_check_is_for_strategies_without_one(model, samples, double_agent):
    def off_by_a_percent(job):
        return lambda x: job.forward(x) * 1.01

    def verdict(check, own=None):
        strategy = ait.OneBackendStrategy(FunctionBackend(off_by_a_percent), check=own)
        strategy.enable_performance_validation(False)
        result = ait.tune(ait.Module(model, "m", strategy), samples, check=check)
        return only(result).graphs[0].trials[0].verdict

    assert verdict(None) is ait.Verdict.wrong
    assert verdict(ait.Check(max_error=0.1)) is ait.Verdict.accepted
    assert verdict(ait.Check(max_error=0.1), own=ait.Check(max_error=1e-6)) is ait.Verdict.wrong
    with pytest.raises(AITuneUserInputError, match="check"):
        verdict(lambda: 1)


@argument("tune", "seed")
def test_seed_chooses_the_rows_of_synthesised_batches(model, samples):
    def seen(seed):
        rows = []

        def make(job):
            def run(x):
                rows.append(tuple(x[:, 0].tolist()) if len(x) == 3 else None)
                return job.forward(x)

            return run

        strategy = ait.OneBackendStrategy(FunctionBackend(make)).enable_find_max_batch_size(False)
        ait.tune(ait.Module(model, "m", strategy), samples, batch_sizes=[2, 4], seed=seed)
        return {row for row in rows if row is not None}

    assert seen(0) == seen(0) != seen(1)


@argument("tune", "seed")
def test_seed_is_checked_and_leaves_the_global_random_state(model, samples, always, unchanged_torch_state):
    wrapped = ait.Module(model, "m", always())
    with unchanged_torch_state():
        ait.tune(wrapped, samples, seed=5)
    with pytest.raises(AITuneUserInputError, match="seed"):
        ait.tune(wrapped, samples, seed="x")


# ---------------------------------------------------------------------------------------------- Module


@argument("Module", "module")
def test_module_stands_for_the_module(model):
    wrapped = ait.Module(model)
    assert isinstance(wrapped, type(model))
    assert isinstance(wrapped, torch.nn.Module)
    assert wrapped.linear is model.linear
    assert torch.equal(wrapped(torch.ones(1, 4)), model(torch.ones(1, 4)))
    with pytest.raises(AITuneUserInputError, match=r"torch\.nn\.Module"):
        ait.Module(lambda x: x)


@argument("Module", "name")
def test_name_is_the_class_path_or_what_is_given_and_unique(model):
    first, second = ait.Module(torch.nn.ReLU(), "same"), ait.Module(torch.nn.ReLU(), "same")
    assert [ait.handle(first).name, ait.handle(second).name] == ["same", "same-1"]
    assert ait.handle(ait.Module(model)).name.endswith("Small")
    with pytest.raises(AITuneUserInputError, match="name"):
        ait.Module(model, "")


@argument("Module", "strategy")
def test_strategy_tunes_every_graph(model, samples, always):
    result = ait.tune(ait.Module(model, strategy=always()), samples)
    assert only(result).graphs[0].chosen == "FunctionBackend()"
    with pytest.raises(AITuneUserInputError, match="strategy"):
        ait.Module(model, strategy="fast")


@argument("Module", "strategies")
@pytest.mark.parametrize("by_name", [False, True])
def test_strategies_tune_graph_by_graph(model, always, double_agent, by_name):
    first, second = always(double_agent("one")), always(double_agent("two"))
    strategies = {"graph1": second, "graph0": first} if by_name else [first, second]
    wrapped = ait.Module(model, strategies=strategies)
    data = [torch.randn(1, 4), torch.randn(1, 2, 4)]
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    result = ait.tune(wrapped, loader)
    assert [graph.chosen for graph in only(result).graphs] == [
        "FunctionBackend(label='one')",
        "FunctionBackend(label='two')",
    ]
    with pytest.raises(ValueError, match="not both"):
        ait.Module(model, strategy=first, strategies=[first])


@argument("Module", "dynamic_shapes")
def test_dynamic_shapes_are_the_range(model, always):
    shapes = {"x": (ait.BatchDim("batch", 1, 16), 4)}
    wrapped = ait.Module(model, "m", always(), dynamic_shapes=shapes)
    result = ait.tune(wrapped, [torch.randn(4)], batch_sizes=[2])
    assert "batch=1..16" in inputs_of(result)
    wrapped(torch.ones(16, 4))
    assert ait.handle(wrapped).stats.engine_calls == {"FunctionBackend()": 1}


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"y": (ait.BatchDim("batch", 1, 16), 4)}, "y, which is no tensor input"),
        ({"x": (ait.BatchDim("batch", 1, 16),)}, "1 sizes for x, which has 2 axes"),
        ({"x": (ait.BatchDim("batch", 4, 16), 4)}, "axis 0 of x is declared as batch = 4 to 16"),
        ({"x": (ait.BatchDim("batch", 1, 16), 5)}, "axis 1 of x"),
        ({"x": (ait.BatchDim("n", 1, 16), ait.DynamicDim("n", 1, 8))}, "declared twice"),
        ({"x": (ait.BatchDim("n", 1, 16), ait.BatchDim("n", 1, 16))}, "share the dimension"),
        ({"x": 3}, "one size per axis"),
        ({"x": ("batch", 4)}, "axis 0 of x must be"),
        ([1], "must map"),
    ],
)
def test_a_contradiction_in_dynamic_shapes_is_an_error_that_names_it(model, always, shapes, said):
    with pytest.raises(AITuneUserInputError, match=f"m: .*{said}"):
        ait.tune(ait.Module(model, "m", always(), dynamic_shapes=shapes), [torch.randn(4)], batch_sizes=[2])


@argument("handle", "module")
def test_handle_takes_the_module_or_its_stand_in(model):
    wrapped = ait.Module(model, "m")
    assert ait.handle(model) is ait.handle(wrapped)
    with pytest.raises(AITuneUserInputError, match="not wrapped"):
        ait.handle(torch.nn.ReLU())


@argument("Module.tune", "device", "strategy", "dry_run")
def test_a_handle_tunes_what_it_recorded(model, always, double_agent, capsys):
    wrapped = ait.Module(model, "m", always())
    with pytest.raises(AITuneUserInputError, match="enable_recording"):
        wrapped.tune()
    wrapped.enable_recording()
    assert wrapped.state is ait.ModuleState.RECORDING
    wrapped(torch.ones(2, 4))
    wrapped.tune(dry_run=True)
    assert wrapped.state is ait.ModuleState.RECORDING
    assert wrapped.tune(device="cpu", strategy=always(double_agent("other"))).graphs[0].chosen.endswith("'other')")
    assert wrapped.tune().graphs[0].chosen == "FunctionBackend()"
    with pytest.raises(AITuneUserInputError, match="strategy"):
        wrapped.tune(strategy=3)


@argument("Module.enable_recording", "force")
@argument("Module.enable_passthrough", "force")
@pytest.mark.parametrize("method", ["enable_recording", "enable_passthrough"])
def test_a_tuned_module_gives_up_its_engines_only_by_force(model, samples, always, double_agent, method):
    backend = double_agent()
    wrapped = ait.Module(model, "m", always(backend))
    ait.tune(wrapped, samples)
    with pytest.raises(AITuneUserInputError, match="force=True"):
        getattr(wrapped, method)()
    assert backend.open_engines == 1
    getattr(wrapped, method)(force=True)
    assert backend.open_engines == 0
    assert wrapped.state.value == {"enable_recording": "recording", "enable_passthrough": "passthrough"}[method]


# ------------------------------------------------------------------------------------------ strategies


def tuned_trials(model, samples, strategy):
    return only(ait.tune(ait.Module(model, "m", strategy), samples)).graphs[0]


@argument("OneBackendStrategy", "backend")
def test_one_backend_takes_one(model, samples, double_agent):
    for wrong in (None, [], double_agent):
        with pytest.raises(AITuneUserInputError, match="backend"):
            ait.OneBackendStrategy(wrong)
    with pytest.raises(AITuneUserInputError, match="calling the class"):
        ait.OneBackendStrategy(FunctionBackend)
    backend = double_agent()
    tuned_trials(model, samples, ait.OneBackendStrategy(backend))
    assert backend.builds == 1


@argument("FirstWinsStrategy", "backends")
@argument("MaxThroughputStrategy", "backends")
@argument("MinLatencyStrategy", "backends")
@pytest.mark.parametrize("kind", [ait.FirstWinsStrategy, ait.MaxThroughputStrategy, ait.MinLatencyStrategy])
def test_backends_are_the_candidates(model, samples, unlucky, kind):
    graph = tuned_trials(model, samples, kind([unlucky]))
    assert [trial.verdict for trial in graph.trials] == [ait.Verdict.build_failed]
    assert graph.chosen == "original"
    for wrong in ([], "fast", [3], unlucky):
        with pytest.raises(AITuneUserInputError, match=f"{kind.__name__}: "):
            kind(wrong)
    assert len(kind().candidates(torch.device("cpu"))) > 1


@argument("LatencyBudgetStrategy", "latency_budget_ms", "backends")
def test_a_latency_budget_is_for_the_backends_named(model, samples, double_agent):
    quick = ait.ProfilingConfig(max_seconds=0.1)
    ample = ait.LatencyBudgetStrategy(1e6, [double_agent()], profiling_config=quick)
    graph = tuned_trials(model, samples, ample.enable_performance_validation(False))
    assert [trial.verdict for trial in graph.trials] == [ait.Verdict.accepted]
    with pytest.raises(AITuneUserInputError, match="latency_budget_ms"):
        ait.LatencyBudgetStrategy(0)
    with pytest.raises(AITuneUserInputError, match="LatencyBudgetStrategy: "):
        ait.LatencyBudgetStrategy(1.0, [])


STRATEGIES = [
    pytest.param(lambda b, **o: ait.OneBackendStrategy(b, **o), id="one"),
    pytest.param(lambda b, **o: ait.FirstWinsStrategy([b], **o), id="first"),
    pytest.param(lambda b, **o: ait.MaxThroughputStrategy([b], **o), id="max"),
    pytest.param(lambda b, **o: ait.MinLatencyStrategy([b], **o), id="latency"),
]


@argument("TuneStrategy", "min_speedup_ratio")
@pytest.mark.parametrize("make", STRATEGIES)
def test_min_speedup_ratio_is_the_gain_asked_for(model, samples, double_agent, make):
    graph = tuned_trials(model, samples, make(double_agent(), min_speedup_ratio=1000.0))
    assert graph.trials[0].verdict is ait.Verdict.slower
    assert graph.chosen == "original"
    with pytest.raises(AITuneUserInputError, match="min_speedup_ratio"):
        make(double_agent(), min_speedup_ratio=-1)


@argument("TuneStrategy", "profiling_config")
@pytest.mark.parametrize("make", STRATEGIES)
def test_profiling_config_bounds_the_measurement(model, samples, double_agent, make):
    config = ait.ProfilingConfig(max_seconds=1e-9)
    graph = tuned_trials(model, samples, make(double_agent(), profiling_config=config))
    assert graph.trials[0].verdict is ait.Verdict.undecided
    with pytest.raises(AITuneUserInputError, match="profiling_config"):
        make(double_agent(), profiling_config=3)


@argument("TuneStrategy", "check")
@pytest.mark.parametrize("make", STRATEGIES)
def test_the_check_of_a_strategy_judges(model, samples, make):
    backend = FunctionBackend(lambda job: lambda x: job.forward(x) * 1.01)
    strict = tuned_trials(model, samples, make(backend, check=ait.Check(max_error=1e-3)))
    loose = tuned_trials(model, samples, make(backend, check=ait.Check(max_error=0.1)))
    assert strict.trials[0].verdict is ait.Verdict.wrong
    assert loose.trials[0].verdict is not ait.Verdict.wrong
    with pytest.raises(AITuneUserInputError, match="check"):
        make(backend, check=0.1)


@argument("TuneStrategy", "time_limit")
@pytest.mark.parametrize("make", STRATEGIES)
def test_the_time_limit_of_a_strategy_begins_no_candidate_after_it(model, samples, double_agent, make):
    backend = double_agent()
    graph = tuned_trials(model, samples, make(backend, time_limit=1e-9))
    assert graph.trials[0].verdict is ait.Verdict.skipped
    assert backend.builds == 0
    with pytest.raises(AITuneUserInputError, match="time_limit"):
        make(backend, time_limit="soon")


@argument("TuneStrategy.enable_correctness_check", "enabled")
@argument("TuneStrategy.enable_performance_validation", "enabled")
@pytest.mark.parametrize("make", STRATEGIES)
def test_checks_can_be_switched_off_in_place(model, samples, make):
    backend = FunctionBackend(lambda job: lambda x: job.forward(x) + 1)
    strategy = make(backend)
    assert tuned_trials(model, samples, strategy).trials[0].verdict is ait.Verdict.wrong
    assert strategy.enable_correctness_check(False) is strategy
    assert strategy.enable_performance_validation(False) is strategy
    assert tuned_trials(model, samples, strategy).trials[0].verdict is ait.Verdict.accepted
    with pytest.raises(AITuneUserInputError, match="True or False"):
        strategy.enable_correctness_check("no")


@argument("TuneStrategy.enable_find_max_batch_size", "enabled")
def test_the_search_for_the_batch_size_can_be_switched_off(model, samples, double_agent):
    strategy = ait.MaxThroughputStrategy([double_agent()]).enable_performance_validation(False)
    assert tuned_trials(model, samples, strategy).trials[0].batch_size > 2
    strategy.enable_find_max_batch_size(False)
    assert tuned_trials(model, samples, strategy).trials[0].batch_size == 2


# ---------------------------------------------------------------------------------------- everything else


@argument("DataLoaderFactory", "dataset", "collate_fn", "num_workers")
def test_a_factory_collates_its_dataset(model, always):
    def collate(batch):
        return {"x": torch.stack(batch) * 0}

    factory = ait.DataLoaderFactory([torch.ones(4)] * 3, collate_fn=collate, num_workers=0)
    seen = []
    wrapped = ait.Module(model, "m", always())
    ait.tune(lambda x: seen.append(x) or wrapped(x), factory)
    assert seen
    assert all(x.sum() == 0 for x in seen)
    with pytest.raises(AITuneUserInputError, match="num_workers"):
        ait.DataLoaderFactory([], num_workers=-1)


@argument("DataLoaderFactory.create_dataloader", "batch_size")
def test_a_factory_makes_batches_of_a_size():
    (first, *_) = ait.DataLoaderFactory([torch.ones(4)] * 3).create_dataloader(2)
    assert first.shape == (2, 4)


@argument("BatchDim", "name", "min", "max", "opt")
@argument("DynamicDim", "name", "min", "max", "opt")
@pytest.mark.parametrize("kind", [ait.BatchDim, ait.DynamicDim])
def test_a_dimension_holds_what_it_was_given(kind):
    dim = kind("n", 1, 8, opt=4)
    assert (dim.name, dim.min, dim.max, dim.opt) == ("n", 1, 8, 4)
    with pytest.raises(ValueError, match="n"):
        kind("n", 8, 1)


def test_the_record_of_a_tune_goes_where_the_config_says(model, samples, always, tmp_path, monkeypatch):
    monkeypatch.setattr(ait.config, "tuning_data_output_path", tmp_path / "record.json")
    ait.tune(ait.Module(model, "m", always()), samples)
    assert "m" in json.dumps(json.loads((tmp_path / "record.json").read_text()))


CALLABLES = {
    "tune": ait.tune,
    "Module": ait.Module.__init__,
    "handle": ait.handle,
    "Module.tune": type(ait.handle(ait.Module(torch.nn.Identity()))).tune,
    "Module.enable_recording": type(ait.handle(ait.Module(torch.nn.Identity()))).enable_recording,
    "Module.enable_passthrough": type(ait.handle(ait.Module(torch.nn.Identity()))).enable_passthrough,
    "TuneStrategy": ait.TuneStrategy,
    "TuneStrategy.enable_correctness_check": ait.TuneStrategy.enable_correctness_check,
    "TuneStrategy.enable_performance_validation": ait.TuneStrategy.enable_performance_validation,
    "TuneStrategy.enable_find_max_batch_size": ait.TuneStrategy.enable_find_max_batch_size,
    "OneBackendStrategy": ait.OneBackendStrategy,
    "FirstWinsStrategy": ait.FirstWinsStrategy,
    "MaxThroughputStrategy": ait.MaxThroughputStrategy,
    "MinLatencyStrategy": ait.MinLatencyStrategy,
    "LatencyBudgetStrategy": ait.LatencyBudgetStrategy,
    "DataLoaderFactory": ait.DataLoaderFactory,
    "DataLoaderFactory.create_dataloader": ait.DataLoaderFactory.create_dataloader,
    "BatchDim": ait.BatchDim,
    "DynamicDim": ait.DynamicDim,
}


def shown_in_this_file():
    shown = {}
    for node in ast.walk(ast.parse(Path(__file__).read_text())):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "argument":
                    owner, *names = [item.value for item in decorator.args]
                    shown.setdefault(owner, set()).update(names)
    return shown


@pytest.mark.parametrize("name", CALLABLES)
def test_no_argument_is_left_without_a_test(name):
    parameters = inspect.signature(CALLABLES[name]).parameters
    expected = {p for p, value in parameters.items() if p != "self" and value.kind is not value.VAR_KEYWORD}
    assert shown_in_this_file()[name] == expected
