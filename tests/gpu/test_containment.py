"""What crashes or fills the device costs its own line, and none of the device's memory (scenarios 9 to 11)."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import (
    Backend,
    BackendConfig,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorAotBackend,
    TorchInductorAotBackendConfig,
)
from aitune.torch.trial import Verdict

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
from device import taken

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("isolated")]

GRAPHS = TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True))
LOST = 64 << 20
"""What the libraries' own scratch memory may take."""


@pytest.fixture
def isolated(monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", "process")


class Taking(Backend[BackendConfig]):
    """Takes gigabytes of the device, and then goes wrong."""

    devices = ("cuda",)

    def build(self, job):
        held = [torch.empty(1 << 30, dtype=torch.uint8, device=job.device).zero_() for _ in range(4)]
        torch.cuda.synchronize()
        self.end()
        raise AssertionError(f"{len(held)} blocks are held, and it goes on")

    def end(self):
        raise NotImplementedError


class Aborting(Taking):
    def end(self):
        os.abort()


class Segfaulting(Taking):
    def end(self):
        ctypes.string_at(0)


class Hanging(Taking):
    def end(self):
        time.sleep(1000)


class Faulting(Taking):
    """Reads where nothing is, on the device: no kernel runs in that process any more."""

    def end(self):
        place = torch.zeros(1, dtype=torch.int64, device="cuda")
        index = torch.tensor([1 << 50], device="cuda")
        place[index] += 1
        torch.cuda.synchronize()


class Filling(Backend[BackendConfig]):
    devices = ("cuda",)

    def build(self, job):
        held = []
        while True:
            held.append(torch.empty(4 << 30, dtype=torch.uint8, device=job.device))


def deep():
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(24)]).eval().cuda()


def taken_with_an_engine():
    """What is taken after a tune like the one to come: kernels are loaded, and the chosen engine has its memory."""
    module = deep()
    tuned(module, GRAPHS)
    module(torch.randn(2, 64, device="cuda"))
    found = taken()
    ait.handle(module).untune()
    return found


def tuned(module, *backends, **options):
    strategy = ait.MaxThroughputStrategy(backends=list(backends)).enable_performance_validation(False)
    strategy.enable_find_max_batch_size(False)
    result = ait.tune(ait.Module(module, "deep", strategy), list(torch.randn(4, 64)), **options)
    (graph,) = result.modules["deep"].graphs
    return graph, {trial.backend.split("(")[0]: trial for trial in graph.trials}


@torch.no_grad()
def test_crashes_hangs_and_faults_cost_a_line_each_and_no_memory():
    before = taken_with_an_engine()
    module = deep()
    x = torch.randn(2, 64, device="cuda")
    wanted = module(x)
    graph, found = tuned(
        module, Aborting(), Segfaulting(), Faulting(), Hanging(), Filling(), GRAPHS, backend_time_limit=15.0
    )
    after = taken()
    print({name: (str(trial.verdict), trial.reason[:300]) for name, trial in found.items()}, after - before)
    assert found["Aborting"].verdict is Verdict.crashed
    assert "SIGABRT" in found["Aborting"].reason
    assert found["Segfaulting"].verdict is Verdict.crashed
    assert found["Faulting"].verdict in (Verdict.build_failed, Verdict.crashed)
    assert found["Hanging"].verdict is Verdict.timed_out
    assert found["Filling"].verdict is Verdict.out_of_memory
    assert graph.chosen == GRAPHS.describe(), graph
    assert after - before < LOST, f"{(after - before) >> 20} MB of the device are gone"
    assert torch.equal(module(x), wanted)


@torch.no_grad()
def test_ahead_of_time_inductor_is_contained():
    before = taken_with_an_engine()
    module = deep()
    x = torch.randn(2, 64, device="cuda")
    wanted = module(x)
    backend = TorchInductorAotBackend(TorchInductorAotBackendConfig(use_cuda_graphs=True))
    graph, found = tuned(module, GRAPHS, backend)
    after = taken()
    trial = found["TorchInductorAotBackend"]
    print(trial.verdict, trial.reason[:300], trial.speedup, trial.build_seconds, after - before)
    assert trial.speedup is not None, (trial.verdict, trial.reason, Path(trial.log_path).read_text()[-3000:])
    assert graph.chosen_trial is not None, graph
    assert after - before < LOST, f"{(after - before) >> 20} MB of the device are gone"
    assert torch.allclose(module(x), wanted, atol=1e-5)
