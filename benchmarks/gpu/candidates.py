"""What is measured: single backends of aitune, its strategies, and what makes the name of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["STRATEGIES", "Work", "candidates"]

STRATEGIES = ("MaxThroughputStrategy", "MinLatencyStrategy")


@dataclass(frozen=True)
class Work:
    """One row to make: a candidate, or a strategy, on a model."""

    model: str
    subject: str

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.model}_{self.subject}"


def candidates() -> dict[str, Callable[[], Any]]:
    """Return each backend that a user could pick, under the name of its row."""
    from aitune.torch.backend import (
        TensorRTBackend,
        TensorRTBackendConfig,
        TorchAOBackend,
        TorchAOBackendConfig,
        TorchEagerBackend,
        TorchEagerBackendConfig,
        TorchInductorAotBackend,
        TorchInductorAotBackendConfig,
        TorchInductorJitBackend,
        TorchInductorJitBackendConfig,
        TorchTensorRTAotBackend,
        TorchTensorRTAotBackendConfig,
        TorchTensorRTJitBackend,
        TorchTensorRTJitBackendConfig,
    )

    return {
        "eager-graphs": lambda: TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True)),
        "inductor": TorchInductorJitBackend,
        "inductor-graphs": lambda: TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="reduce-overhead")),
        "inductor-max": lambda: TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="max-autotune")),
        "inductor-aot": TorchInductorAotBackend,
        "inductor-aot-graphs": lambda: TorchInductorAotBackend(TorchInductorAotBackendConfig(use_cuda_graphs=True)),
        "tensorrt": TensorRTBackend,
        "tensorrt-graphs": lambda: TensorRTBackend(TensorRTBackendConfig(use_cuda_graphs=True)),
        "tensorrt-traced": lambda: TensorRTBackend(TensorRTBackendConfig(use_dynamo=False, use_cuda_graphs=True)),
        "torch-tensorrt-jit": lambda: TorchTensorRTJitBackend(TorchTensorRTJitBackendConfig(use_cuda_graphs=True)),
        "torch-tensorrt-aot": lambda: TorchTensorRTAotBackend(TorchTensorRTAotBackendConfig(use_cuda_graphs=True)),
        "torchao-fp8dq": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="fp8dq", mode="reduce-overhead")),
        "torchao-int8wo": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="int8wo", mode="reduce-overhead")),
    }
