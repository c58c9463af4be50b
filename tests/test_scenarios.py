"""Situations from public bug reports, by their number in the list of scenarios. Others stand with what they test."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

import aitune.torch as ait
from aitune.testing import FunctionBackend


def tune(model, dataset, backend, **options):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    strategy.enable_find_max_batch_size(False)
    return ait.tune(ait.Module(model, "m", strategy), dataset, **options)


def same(job):
    return lambda *args, **kwargs: job.forward(*args, **kwargs)


def test_scenario_1_random_numbers_of_the_right_shape_are_rejected():
    model = torch.nn.Linear(4, 3).eval()
    backend = FunctionBackend(lambda job: lambda x: torch.randn(len(x), 3))
    result = tune(model, [torch.randn(4)] * 4, backend)
    (trial,) = result.modules["m"].graphs[0].trials
    assert trial.verdict in (ait.Verdict.wrong, ait.Verdict.random)
    assert trial.error is None or trial.error > 0.1
    x = torch.randn(1, 4)
    assert torch.equal(model(x), model._call_impl(x))


def test_scenario_15_batches_inside_and_outside_the_range_are_right():
    model = torch.nn.Linear(4, 3).eval()
    tune(model, [torch.randn(4) for _ in range(64)], FunctionBackend(same), batch_sizes=[1, 64])
    for batch in (1, 7, 8, 64, 65):
        x = torch.randn(batch, 4)
        assert torch.equal(model(x), model._call_impl(x))
    assert ait.handle(model).stats.fallbacks == {"range": 1}


def test_scenario_16_an_empty_batch_gets_the_eager_answer():
    model = torch.nn.Linear(4, 3).eval()
    tune(model, [torch.randn(4)] * 4, FunctionBackend(same))
    x = torch.ones(0, 4)
    assert model(x).shape == (0, 3)
    assert ait.handle(model).stats.fallbacks == {"range": 1}


class ZeroDim(torch.nn.Module):
    def forward(self, x, scale):
        return (x * scale).sum()


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(lambda: FunctionBackend(same), id="function"),
        pytest.param(lambda: ait_backends().ONNXRuntimeBackend(), id="onnxruntime"),
        pytest.param(lambda: ait_backends().OpenVINOBackend(), id="openvino"),
        pytest.param(lambda: ait_backends().TorchEagerBackend(), id="eager"),
    ],
)
def test_scenario_17_zero_dimensional_tensors_in_and_out(backend):
    model = ZeroDim().eval()
    loader = torch.utils.data.DataLoader(
        [(torch.randn(4), torch.tensor(2.0)), (torch.randn(4), torch.tensor(3.0))], batch_size=None
    )
    tune(model, loader, backend())
    x, scale = torch.randn(4), torch.tensor(5.0)
    result = model(x, scale)
    assert result.shape == ()
    torch.testing.assert_close(result, (x * scale).sum())
    assert sum(ait.handle(model).stats.engine_calls.values()) == 1


BACKENDS = [
    pytest.param(lambda: FunctionBackend(same), id="function"),
    pytest.param(lambda: ait_backends().ONNXRuntimeBackend(), id="onnxruntime"),
    pytest.param(lambda: ait_backends().TorchEagerBackend(), id="eager"),
]


def record_and_tune(model, calls, backend):
    """Tune on real calls, each ``(args, kwargs)``."""
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "m", strategy.enable_find_max_batch_size(False)))
    handle.enable_recording()
    for args, kwargs in calls:
        model(*args, **kwargs)
    handle.tune()
    return handle


class Timed(torch.nn.Module):
    def forward(self, x, step, scale=1.0):
        return x * scale + step


@pytest.mark.parametrize("strict", [True, False])
def test_scenario_18_a_scalar_that_changes_every_call_is_honoured_with_bounded_builds(strict, monkeypatch):
    monkeypatch.setattr(ait.config, "strict_mode", strict)
    backend = FunctionBackend(constants_baked)
    model, x = Timed().eval(), torch.randn(2, 3)
    handle = record_and_tune(model, [((x, step), {"scale": step / 4}) for step in range(30)], backend)
    assert backend.builds <= 8
    for step in (*range(40), 3.5, True):
        for scale in (step / 4, 0.0, -0.0, float("nan")):
            assert same_bits(model(x, step, scale), x * scale + step)
    assert handle.stats.calls == (42 * 4 if strict else 0)  # nothing is installed where no backend takes the scalar


@pytest.mark.parametrize(
    ("backend", "strict", "graphs"),
    [
        pytest.param(lambda: ait_backends().TorchEagerBackend(), True, 8, id="eager"),
        pytest.param(lambda: ait_backends().TorchInductorJitBackend(), False, 1, id="inductor", marks=pytest.mark.slow),
    ],
)
def test_scenario_18_where_the_engine_takes_it_the_scalar_is_passed_through(backend, strict, graphs, monkeypatch):
    monkeypatch.setattr(ait.config, "strict_mode", strict)
    model, x = Timed().eval(), torch.randn(2, 3)
    handle = record_and_tune(model, [((x, step), {"scale": step / 4 + 0.1}) for step in range(12)], backend())
    assert len(handle.result.graphs) == graphs
    for step in range(40):
        scale = step / 4 + 0.1
        torch.testing.assert_close(model(x, step, scale), x * scale + step)
    assert sum(handle.stats.engine_calls.values()) == 40
    model(x, True)
    assert handle.stats.fallbacks == {"value": 1}


def constants_baked(job):
    """Build as exporters do: what is no tensor is a constant."""
    args, kwargs = job.graph.call(job.graph.input_tensors(job.samples[0].args, job.samples[0].kwargs))
    arguments = job.graph.signature.bind(args, kwargs)
    constants = {name: value for name, value in arguments.items() if not torch.is_tensor(value)}
    bind = job.graph.signature.bind

    def run(*args, **kwargs):
        return job.forward(**{**bind(args, kwargs), **constants})

    return run


def same_bits(one, two):
    return torch.equal(one.view(torch.int32), two.view(torch.int32)) or torch.equal(one.isnan(), two.isnan())


class Mode(enum.Enum):
    SUM = "sum"
    DIFFERENCE = "difference"


@dataclass
class Answer:
    total: torch.Tensor
    mode: Mode
    parts: dict[str, Any]


class Structured(torch.nn.Module):
    def forward(self, batch, pairs, mode=Mode.SUM, *, note=None, name="plain", flag=True):
        total = batch["x"] * 2 if flag else batch["x"]
        for left, right in pairs:
            total = total + left * (1 if mode is Mode.SUM else -1)
            total = total if right is None else total - right
        return {
            "answer": Answer(total, mode, {"pairs": [(left, right) for left, right in pairs], "note": note}),
            "output": BaseModelOutput(last_hidden_state=total + 1, hidden_states=(total, total * 2)),
            "name": name,
        }


def written_out(value):
    if torch.is_tensor(value):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, written_out(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [written_out(item) for item in value]
    if isinstance(value, Answer):
        return Answer, [written_out(getattr(value, name)) for name in ("total", "mode", "parts")]
    return type(value), value


@pytest.mark.parametrize("backend", BACKENDS)
def test_scenario_19_nested_arguments_and_outputs_keep_their_types_and_keys(backend):
    model = Structured().eval()

    def call(batch, **options):
        x, y = torch.randn(batch, 3), torch.randn(batch, 3)
        return ({"x": x, "unused": [None, "text", 3]}, [(y, None), (x, y)]), options

    variants = [{}, {"mode": Mode.DIFFERENCE}, {"flag": False, "note": "n", "name": "it's"}]
    handle = record_and_tune(model, [call(batch, **options) for options in variants for batch in (1, 2)], backend())
    assert len(handle.result.graphs) == 3
    for options in (*variants, {"note": "other"}):
        args, kwargs = call(2, **options)
        assert written_out(model(*args, **kwargs)) == written_out(model._call_impl(*args, **kwargs))
    assert sum(handle.stats.engine_calls.values()) == 3
    assert handle.stats.fallbacks == {"value": 1}


class Optional(torch.nn.Module):
    def forward(self, x, scale=2.0, shift=None, *, clip=False):
        y = x * scale if shift is None else x * scale + shift
        return y.clamp(0, 1) if clip else y


@pytest.mark.parametrize("backend", BACKENDS)
def test_scenario_20_positional_keyword_and_mixed_forms_are_one_graph(backend):
    model, x = Optional().eval(), torch.randn(2, 3)
    forms = [
        ((x,), {}),
        ((), {"x": x}),
        ((x, 2.0), {}),
        ((x,), {"clip": False}),
        ((x, 2.0, None), {"clip": False}),
        ((), {"shift": None, "clip": False, "scale": 2.0, "x": x}),
    ]
    handle = record_and_tune(model, forms, backend())
    assert len(handle.result.graphs) == 1
    for args, kwargs in forms:
        torch.testing.assert_close(model(*args, **kwargs), x * 2)
    assert sum(handle.stats.engine_calls.values()) == len(forms)
    assert handle.stats.fallbacks == {}


class Passing(torch.nn.Module):
    def forward(self, x, *rest, **kwargs):
        total = x + 1
        for one in (*rest, *(kwargs[key] for key in sorted(kwargs) if torch.is_tensor(kwargs[key]))):
            total = total * 2 + one
        return total


@pytest.mark.parametrize("backend", BACKENDS)
def test_scenario_21_variadic_arguments_pass_through_untouched(backend):
    model, x, y = Passing().eval(), torch.randn(2, 3), torch.randn(2, 3)
    calls = [((x,), {"b": y, "a": x}), ((x, y), {"mode": "m", "self_": 1}), ((x,), {})]
    handle = record_and_tune(model, calls, backend())
    others = [((x,), {"c": y}), ((x, y, y), {}), ((x,), {"a": x, "b": y}), ((x, y), {"self_": 1, "mode": "m"})]
    for args, kwargs in calls + others:
        before = dict(kwargs)
        torch.testing.assert_close(model(*args, **kwargs), Passing()(*args, **kwargs))
        assert kwargs == before
    assert handle.stats.calls == len(calls + others)
    assert sum(handle.stats.engine_calls.values()) >= len(calls)


class Accumulating(torch.nn.Module):
    def forward(self, x, history=None):
        x.add_(1)
        if history is not None:
            history["total"].add_(x)
        return x * 2


@pytest.mark.parametrize(
    "backend",
    [*BACKENDS, pytest.param(lambda: ait_backends().TorchInductorJitBackend(), id="inductor", marks=pytest.mark.slow)],
)
def test_scenario_22_an_input_mutated_in_place_changes_exactly_once(backend):
    model = Accumulating().eval()
    samples = [torch.zeros(2, 3), torch.zeros(2, 3)]
    totals = [torch.zeros(2, 3), torch.zeros(2, 3)]
    strategy = ait.FirstWinsStrategy([backend()]).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "m", strategy.enable_find_max_batch_size(False)))
    handle.enable_recording()
    for x, total in zip(samples, totals, strict=True):
        model(x, {"total": total})
    handle.tune()
    assert all(torch.equal(x, torch.ones(2, 3)) for x in (*samples, *totals))
    for times in (1, 2, 3):
        x, total = torch.zeros(2, 3), torch.zeros(2, 3)
        for _ in range(times):
            answer = model(x, {"total": total})
        assert torch.equal(x, torch.full((2, 3), float(times)))
        assert torch.equal(total, torch.full((2, 3), times * (times + 1) / 2))
        assert torch.equal(answer, x * 2)
    shared, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    answer = model(shared, {"total": shared.view(2, 3)})  # aliased: what is right depends on the order of the writes
    assert torch.equal(answer, Accumulating()(expected, {"total": expected.view(2, 3)}))
    assert torch.equal(shared, expected)


def test_scenario_41_where_the_overhead_is_more_than_the_gain_eager_stays():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    strategy = ait.MaxThroughputStrategy([FunctionBackend(same)]).enable_find_max_batch_size(False)
    result = ait.tune(ait.Module(model, "m", strategy), [torch.randn(4)] * 4)
    (graph,) = result.modules["m"].graphs
    assert graph.chosen == "original"
    assert graph.trials[0].verdict in (ait.Verdict.slower, ait.Verdict.undecided)
    assert model._compiled_call_impl is None


def ait_backends():
    import aitune.torch.backend as backends

    return backends
