"""What a tune takes of the device at its peak: three times the model, the largest engine and one more context."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import (
    TensorRTBackend,
    TensorRTBackendConfig,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorJitBackend,
    TorchInductorJitBackendConfig,
)

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
from device import in_use, taken, watched

pytestmark = pytest.mark.gpu

CANDIDATES = {
    "graphs": TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True)),
    "inductor": TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="reduce-overhead")),
    "tensorrt": TensorRTBackend(TensorRTBackendConfig(use_cuda_graphs=True)),
}
WIDTH = 8192
ACTIVATIONS = 128 << 20
"""For inputs, outputs, the libraries' scratch memory and blocks of torch's allocator."""


def large(width=WIDTH):
    """A gigabyte of weights in half precision, and next to nothing of activations."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = [nn.Sequential(nn.Linear(width, width, bias=False, dtype=torch.float16), nn.ReLU()) for _ in range(8)]
        return nn.Sequential(*layers).eval()


def libraries_loaded():
    """Run each candidate here, on next to nothing: what a library keeps once it is loaded is not a tune's."""
    ait.config.isolation = "none"
    for backend in CANDIDATES.values():
        module = large(64)
        strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
        ait.tune(
            ait.Module(module, "small", strategy.enable_find_max_batch_size(False)),
            list(torch.randn(4, 64, dtype=torch.float16)),
            batch_sizes=[1, 2],
        )
        ait.handle(module).untune()
    ait.config.isolation = "process"


@pytest.mark.timeout(600)
@torch.no_grad()
def test_the_peak_of_a_tune_is_three_times_the_model_the_largest_engine_and_one_context(monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", "process")  # put back afterwards
    torch.zeros(1, device="cuda")
    context = taken()  # of this process, and what the system itself takes
    module = large()
    model = sum(one.nbytes for one in module.parameters())
    x = torch.randn(2, WIDTH, device="cuda", dtype=torch.float16)
    wanted = module(x)
    libraries_loaded()
    before = taken()
    assert before - context >= model
    strategy = ait.MaxThroughputStrategy(backends=list(CANDIDATES.values())).enable_performance_validation(False)
    wrapped = ait.Module(module, "large", strategy.enable_find_max_batch_size(False))
    samples = list(torch.randn(4, WIDTH, dtype=torch.float16))
    with watched() as peak:
        result = ait.tune(wrapped, samples, batch_sizes=[1, 2], progress=peak)
    (graph,) = result.modules["large"].graphs
    verdicts = {trial.backend: str(trial.verdict) for trial in graph.trials}
    assert graph.chosen_trial is not None, str(result)
    engine = model  # each holds the weights once, at the most
    allowed = 3 * model + engine + context + ACTIVATIONS
    there = before - model  # this process's context and libraries
    mine = peak.bytes - there
    print(f"model {model >> 20} MB, context {context >> 20} MB, peak {mine >> 20} MB more, allowed {allowed >> 20} MB")
    print(verdicts, graph.chosen)
    stages = {stage: (taken_then - there) >> 20 for stage, taken_then in peak.stages.items()}
    for stage, megabytes in stages.items():
        print(f"{megabytes:>6} MB  {stage}")
    print(*(f"{trial.backend}: {trial.reason[:200]}" for trial in graph.trials if trial.reason), sep="\n")
    assert mine <= allowed, f"peak {mine >> 20} MB, allowed {allowed >> 20} MB; {stages}"
    found = wrapped(x)
    assert float((found.double() - wanted.double()).norm() / wanted.double().norm()) < 1e-2
    ait.handle(module).untune()
    del wrapped, result, graph, found
    assert taken() - before <= ACTIVATIONS, f"{(in_use() - before) >> 20} MB of the device are not given back"
