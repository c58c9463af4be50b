"""The contract suite of backends on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from aitune.testing import BackendContract
from aitune.torch.backend import (
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorJitBackend,
    TorchInductorJitBackendConfig,
)

pytestmark = pytest.mark.gpu

EVERY_CASE = ("mlp", "conv", "nested", "keywords", "discrete", "scalars")


class OnCuda(BackendContract):
    device = "cuda"
    required = EVERY_CASE


class TestEager(OnCuda):
    def make_backend(self):
        return TorchEagerBackend()


class TestEagerAsGraphs(OnCuda):
    def make_backend(self):
        return TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True))


class TestAutocastAsGraphs(OnCuda):
    precision = "bfloat16"

    def make_backend(self):
        config = TorchEagerBackendConfig(use_cuda_graphs=True, autocast_enabled=True, autocast_dtype=torch.bfloat16)
        return TorchEagerBackend(config)


class TestChannelsLastAsGraphs(OnCuda):
    required = ("conv",)

    def make_backend(self):
        return TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True, channels_last=True))


class TestInductor(OnCuda):
    def make_backend(self):
        return TorchInductorJitBackend()


class TestInductorAsGraphs(OnCuda):
    def make_backend(self):
        return TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="reduce-overhead"))
