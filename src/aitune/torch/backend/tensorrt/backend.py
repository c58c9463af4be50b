"""TensorRT engines, by way of ONNX. Options only in this version."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.quantization import (
    ONNXAutoCastConfig,
    ONNXQuantizationConfig,
    TorchQuantizationConfig,
)
from aitune.torch.backend.tensorrt.profile import ProfileMode, TensorRTProfile
from aitune.torch.backend.validation import check_bool, check_choice, check_int, refuse
from aitune.torch.graph.job import Job

__all__ = ["TensorRTBackend", "TensorRTBackendConfig"]

_COMPATIBILITY = ("none", "ampere_plus", "same_compute_capability")
_QUANTIZATIONS = (ONNXAutoCastConfig, ONNXQuantizationConfig, TorchQuantizationConfig)


@dataclass(frozen=True)
class TensorRTBackendConfig(BackendConfig):
    """Options of TensorRT and of the ONNX export before it.

    Attributes:
        use_dynamo: Whether the module is exported by ``torch.export``; False traces it with TorchScript.
        workspace_size: Bytes that TensorRT may use while it builds; None leaves it to the library.
        opset_version: ONNX opset; None: the exporter's default.
        optimization_level: 0 to 5, higher looks longer for quicker kernels; None leaves it to the library.
        compatibility_level: For which other GPUs the engine is to work: ``"none"``, ``"ampere_plus"`` or
            ``"same_compute_capability"``; None leaves it to the library.
        timing_cache: File in which measured kernel times are kept; None keeps none.
        profiles: For which sizes kernels are chosen: a mode, or profiles of one's own.
        quantization_config: How to compute in fewer bits; None computes in the module's own dtype.
        enable_tf32: Whether float32 products may drop bits.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    use_dynamo: bool = True
    workspace_size: int | None = None
    opset_version: int | None = None
    optimization_level: int | None = None
    compatibility_level: str | None = None
    timing_cache: str | Path | None = None
    profiles: ProfileMode | Sequence[TensorRTProfile] = ProfileMode.SINGLE
    quantization_config: ONNXAutoCastConfig | ONNXQuantizationConfig | TorchQuantizationConfig | None = None
    enable_tf32: bool = True
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_bool(self, "use_dynamo", "enable_tf32", "use_cuda_graphs")
        check_int(self, "workspace_size", 1)
        check_int(self, "opset_version", 9)
        check_int(self, "optimization_level", 0, 5)
        check_choice(self, "compatibility_level", (*_COMPATIBILITY, None))
        if not isinstance(self.timing_cache, (str, Path, type(None))):
            raise refuse(self, "timing_cache", "a path or None", self.timing_cache)
        quantization: object = self.quantization_config
        if quantization is not None and not isinstance(quantization, _QUANTIZATIONS):
            names = ", ".join(kind.__name__ for kind in _QUANTIZATIONS)
            raise refuse(self, "quantization_config", f"one of {names} or None", quantization)
        if not isinstance(self.profiles, ProfileMode):
            object.__setattr__(self, "profiles", self._own_profiles())

    def _own_profiles(self) -> tuple[TensorRTProfile, ...]:
        profiles: Any = self.profiles
        wanted = "ProfileMode.SINGLE, ProfileMode.SAMPLES_USED or a list of TensorRTProfile"
        if isinstance(profiles, str) or not isinstance(profiles, Sequence) or not profiles:
            raise refuse(self, "profiles", wanted, profiles)
        if not all(isinstance(profile, TensorRTProfile) for profile in profiles):
            raise refuse(self, "profiles", wanted, profiles)
        return tuple(copy.deepcopy(profile) for profile in profiles)


class TensorRTBackend(Backend[TensorRTBackendConfig]):
    """Builds a TensorRT engine from the exported module, with ``tensorrt`` or ``tensorrt_rtx``."""

    config_class = TensorRTBackendConfig
    devices = ("cuda",)
    requires = (
        Requirement("tensorrt", "tensorrt", alternatives=("tensorrt_rtx",)),
        Requirement("onnx", "onnx"),
        Requirement("onnxscript", "onnx"),
    )
    complexity = 6

    def build(self, job: Job) -> Engine:
        """Refuse: engines of this backend are not built yet.

        Raises:
            BackendUnsupportedError: Always, with the reason.
            BackendNotInstalledError: If the library is not installed.
        """
        require(self, job)
        raise BackendUnsupportedError(self.name, "not built yet in this version of aitune")
