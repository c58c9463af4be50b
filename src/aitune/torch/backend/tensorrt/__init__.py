"""TensorRT: options, profiles and backend. Importing it needs neither the library nor a GPU."""

from aitune.torch.backend.tensorrt.backend import TensorRTBackend, TensorRTBackendConfig
from aitune.torch.backend.tensorrt.profile import ProfileMode, TensorRTProfile

__all__ = ["ProfileMode", "TensorRTBackend", "TensorRTBackendConfig", "TensorRTProfile"]
