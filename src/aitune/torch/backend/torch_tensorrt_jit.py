"""torch.compile with Torch-TensorRT as its compiler."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

import torch

from aitune.exceptions import BackendMachineError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.compiled import compiled_forward, engine_of, under_autocast, warmed_up
from aitune.torch.backend.function_engine import EngineFacts
from aitune.torch.backend.precision import lowest, module_precision, precision_of
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
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    compile_config: TorchTensorRTConfig = field(default_factory=TorchTensorRTConfig)
    fullgraph: bool = False
    dynamic: bool | None = None
    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.compile_config, TorchTensorRTConfig):
            raise refuse(self, "compile_config", "a TorchTensorRTConfig", self.compile_config)
        check_bool(self, "fullgraph", "use_cuda_graphs")
        check_bool(self, "dynamic", optional=True)
        check_autocast(self)


class TorchTensorRTJitBackend(Backend[TorchTensorRTJitBackendConfig]):
    """Compiles the parts of forward that TensorRT can run, at the first call."""

    config_class = TorchTensorRTJitBackendConfig
    devices = ("cuda",)
    requires = (Requirement("torch_tensorrt", "torch-tensorrt"),)
    complexity = 6

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If nothing of the module was compiled.
            BackendMachineError: If the library does not work here.
            BackendBuildError: If torch.compile fails.
            BackendNotInstalledError: If torch_tensorrt is not installed.
        """
        require(self, job)
        try:
            importlib.import_module("torch_tensorrt")  # registers torch.compile's backend
        except Exception as error:  # whatever a native library that does not fit raises
            raise BackendMachineError(self.name, f"torch_tensorrt cannot be loaded here: {error}") from error
        config, dtype = self.config, None
        precision = module_precision(job)
        if precision == "float32" and not config.compile_config.disable_tf32:
            precision = "tf32"
        if config.autocast_enabled:
            dtype = config.autocast_dtype or torch.get_autocast_dtype(job.device.type)
            precision = lowest((precision, precision_of(dtype)))
        compiled = compiled_forward(
            job,
            job.forward,
            backend="torch_tensorrt",
            fullgraph=config.fullgraph,
            dynamic=config.dynamic,
            options=config.compile_config.settings,
        )
        if dtype is not None:
            compiled = under_autocast(compiled, job.graph, job.device.type, dtype)
        execute, narrowing = warmed_up(job, compiled, job.module, dynamic=config.dynamic, backend=self.name)
        # Its engines hold the weights as they were.
        facts = EngineFacts(precision=precision, keeps_module=True, narrowing=narrowing)
        return engine_of(job, execute, facts, job.module, cuda_graphs=config.use_cuda_graphs)
