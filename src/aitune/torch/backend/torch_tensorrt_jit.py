"""torch.compile with Torch-TensorRT as its compiler. Options only in this version."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.torch_tensorrt_config import TorchTensorRTConfig
from aitune.torch.backend.validation import check_autocast, check_bool, refuse
from aitune.torch.graph.job import Job

__all__ = ["TorchTensorRTJitBackend", "TorchTensorRTJitBackendConfig"]


@dataclass(frozen=True)
class TorchTensorRTJitBackendConfig(BackendConfig):
    """Options of Torch-TensorRT under ``torch.compile``.

    Attributes:
        compile_config: Settings of Torch-TensorRT.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``.
        autocast_enabled: Whether forward runs under autocast.
        autocast_dtype: Its dtype; None: torch's choice for the device.
    """

    compile_config: TorchTensorRTConfig = field(default_factory=TorchTensorRTConfig)
    fullgraph: bool = False
    dynamic: bool | None = None
    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.compile_config, TorchTensorRTConfig):
            raise refuse(self, "compile_config", "a TorchTensorRTConfig", self.compile_config)
        check_bool(self, "fullgraph")
        check_bool(self, "dynamic", optional=True)
        check_autocast(self)


class TorchTensorRTJitBackend(Backend[TorchTensorRTJitBackendConfig]):
    """Compiles the parts of forward that TensorRT can run, at the first call."""

    config_class = TorchTensorRTJitBackendConfig
    devices = ("cuda",)
    requires = (Requirement("torch_tensorrt", "torch-tensorrt"),)
    complexity = 6

    def build(self, job: Job) -> Engine:
        """Refuse: engines of this backend are not built yet.

        Raises:
            BackendUnsupportedError: Always, with the reason.
            BackendNotInstalledError: If torch_tensorrt is not installed.
        """
        require(self, job)
        raise BackendUnsupportedError(self.name, "not built yet in this version of aitune")
