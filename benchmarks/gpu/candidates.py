"""What is measured: single backends of aitune, its strategies, and what makes the name of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BOTH", "STRATEGIES", "Work", "candidates"]

STRATEGIES = ("MaxThroughputStrategy", "MinLatencyStrategy")
BOTH = "strategies"
"""What is made by one process: a row of each strategy."""


@dataclass(frozen=True)
class Work:
    """What one process makes: the row of a candidate on a model, or those of all strategies."""

    model: str
    subject: str

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.model}_{self.subject}"

    def file(self, folder: Path) -> Path:
        """Return where the row is written."""
        return folder / f"{self.name}.json"

    def rows(self) -> list[Work]:
        """Return each row that comes of it."""
        return [Work(self.model, one) for one in STRATEGIES] if self.subject == BOTH else [self]


def candidates() -> dict[str, Callable[[], Any]]:
    """Return each backend that a user could pick, under the name of its row."""
    from aitune.torch.backend import (
        ONNXRuntimeBackend,
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
        "onnxruntime": ONNXRuntimeBackend,
        "tensorrt": TensorRTBackend,
        "tensorrt-graphs": lambda: TensorRTBackend(TensorRTBackendConfig(use_cuda_graphs=True)),
        "tensorrt-traced": lambda: TensorRTBackend(TensorRTBackendConfig(use_dynamo=False, use_cuda_graphs=True)),
        "torch-tensorrt-jit": lambda: TorchTensorRTJitBackend(TorchTensorRTJitBackendConfig(use_cuda_graphs=True)),
        "torch-tensorrt-aot": lambda: TorchTensorRTAotBackend(TorchTensorRTAotBackendConfig(use_cuda_graphs=True)),
        "torchao-fp8dq": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="fp8dq", mode="reduce-overhead")),
        "torchao-int8wo": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="int8wo", mode="reduce-overhead")),
    }
