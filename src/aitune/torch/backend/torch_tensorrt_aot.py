"""An exported graph compiled ahead of time by Torch-TensorRT. Options only in this version."""

from __future__ import annotations

from dataclasses import dataclass, field

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.torch_tensorrt_config import TorchTensorRTConfig
from aitune.torch.backend.validation import refuse
from aitune.torch.graph.job import Job

__all__ = ["TorchTensorRTAotBackend", "TorchTensorRTAotBackendConfig"]


@dataclass(frozen=True)
class TorchTensorRTAotBackendConfig(BackendConfig):
    """Options of Torch-TensorRT on an exported graph.

    Attributes:
        compile_config: Settings of Torch-TensorRT.
    """

    compile_config: TorchTensorRTConfig = field(default_factory=TorchTensorRTConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.compile_config, TorchTensorRTConfig):
            raise refuse(self, "compile_config", "a TorchTensorRTConfig", self.compile_config)


class TorchTensorRTAotBackend(Backend[TorchTensorRTAotBackendConfig]):
    """Compiles the whole exported graph once; later processes load it."""

    config_class = TorchTensorRTAotBackendConfig
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
