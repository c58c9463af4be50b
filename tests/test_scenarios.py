"""Situations from public bug reports, by their number in the list of scenarios. Others stand with what they test."""

from __future__ import annotations

import pytest
import torch

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
