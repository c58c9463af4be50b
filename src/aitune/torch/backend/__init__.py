"""Backends: recipes that build an engine for one graph of a module. None imports its library here."""

from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.onnxruntime import (
    ONNXExecutionProvider,
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
)
from aitune.torch.backend.openvino import OpenVINOBackend, OpenVINOBackendConfig
from aitune.torch.backend.quantization import (
    ONNXAutoCastConfig,
    ONNXQuantizationConfig,
    TorchQuantizationConfig,
)
from aitune.torch.backend.tensorrt import (
    ProfileMode,
    TensorRTBackend,
    TensorRTBackendConfig,
    TensorRTProfile,
)
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.backend.torch_inductor_aot import TorchInductorAotBackend, TorchInductorAotBackendConfig
from aitune.torch.backend.torch_inductor_jit import TorchInductorJitBackend, TorchInductorJitBackendConfig
from aitune.torch.backend.torch_tensorrt_aot import TorchTensorRTAotBackend, TorchTensorRTAotBackendConfig
from aitune.torch.backend.torch_tensorrt_config import TorchTensorRTConfig
from aitune.torch.backend.torch_tensorrt_jit import TorchTensorRTJitBackend, TorchTensorRTJitBackendConfig
from aitune.torch.backend.torchao import TorchAOBackend, TorchAOBackendConfig

__all__ = [
    "Backend",
    "BackendConfig",
    "Engine",
    "ONNXAutoCastConfig",
    "ONNXExecutionProvider",
    "ONNXQuantizationConfig",
    "ONNXRuntimeBackend",
    "ONNXRuntimeBackendConfig",
    "OpenVINOBackend",
    "OpenVINOBackendConfig",
    "ProfileMode",
    "Requirement",
    "TensorRTBackend",
    "TensorRTBackendConfig",
    "TensorRTProfile",
    "TorchAOBackend",
    "TorchAOBackendConfig",
    "TorchEagerBackend",
    "TorchEagerBackendConfig",
    "TorchInductorAotBackend",
    "TorchInductorAotBackendConfig",
    "TorchInductorJitBackend",
    "TorchInductorJitBackendConfig",
    "TorchQuantizationConfig",
    "TorchTensorRTAotBackend",
    "TorchTensorRTAotBackendConfig",
    "TorchTensorRTConfig",
    "TorchTensorRTJitBackend",
    "TorchTensorRTJitBackendConfig",
]
