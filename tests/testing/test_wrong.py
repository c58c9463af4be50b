"""Every wrong engine of the catalogue is found by a tune, and the module answers right afterwards."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend
from aitune.testing.modules import Mlp
from aitune.testing.wrong import WRONG


def tune(backend):
    model = Mlp().eval()
    strategy = ait.FirstWinsStrategy([backend], profiling_config=ait.ProfilingConfig(max_seconds=0.3))
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    result = ait.tune(ait.Module(model, "m", strategy), [torch.randn(8) for _ in range(8)], batch_sizes=[1, 8])
    return model, result.modules["m"].graphs[0]


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_wrong_engine_is_rejected_and_the_module_answers_right(make):
    backend = make()
    model, graph = tune(backend)

    (trial,) = graph.trials
    assert trial.verdict in (ait.Verdict.wrong, ait.Verdict.random), trial
    assert trial.reason
    assert graph.chosen == "original"
    assert backend.open_engines == 0
    for batch in (1, 3, 8):
        x = torch.randn(batch, 8)
        assert torch.equal(model(x), model._call_impl(x))


def test_the_right_engine_beside_them_is_accepted():
    _, graph = tune(FunctionBackend(lambda job: lambda x: job.forward(x)))

    assert graph.trials[0].accepted, graph.trials[0].reason
