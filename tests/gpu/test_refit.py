"""Engines on a CUDA device that take over changed weights, what was captured of the old ones included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import TorchInductorAotBackend, TorchInductorAotBackendConfig

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graphs", [False, True])
@torch.no_grad()
def test_a_tuned_module_goes_on_with_changed_weights(graphs):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 64)).eval().cuda()
    backend = TorchInductorAotBackend(TorchInductorAotBackendConfig(use_cuda_graphs=graphs))
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False).enable_find_max_batch_size(False)
    ait.tune(ait.Module(module, "net", strategy), list(torch.randn(8, 64)), batch_sizes=[1, 4])
    changes = {
        "in place": lambda: module[0].weight.mul_(2),
        "through .data": lambda: module[3].weight.data.mul_(3),
        "a buffer": lambda: module[1].running_mean.add_(1),
        "other memory": lambda: setattr(module[0].bias, "data", torch.randn(256, device="cuda")),
    }
    for name, change in changes.items():
        change()
        for call in range(150):
            x = torch.randn(3, 64, device="cuda")
            found, wanted = module(x), module._call_impl(x)
            if call >= 50:  # within 50 calls
                torch.testing.assert_close(found, wanted, msg=lambda text, name=name: f"{name}: {text}")
            torch.cuda.synchronize()
        before = ait.handle(module).stats.engine_calls[backend.describe()]
        for _ in range(20):
            module(torch.randn(3, 64, device="cuda"))
        assert ait.handle(module).stats.engine_calls[backend.describe()] == before + 20, name
    ait.handle(module).untune()
