"""An exported graph compiled ahead of time by Torch-TensorRT."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendMachineError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import module_precision
from aitune.torch.backend.torch_tensorrt_config import TorchTensorRTConfig
from aitune.torch.backend.validation import check_bool, refuse
from aitune.torch.export.flat import OutputRoutes, flat_call
from aitune.torch.export.program import export_program
from aitune.torch.graph.accessor import compile_call, compile_output
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.job import Job
from aitune.torch.graph.spec import TensorSpec

__all__ = ["TorchTensorRTAotBackend", "TorchTensorRTAotBackendConfig"]


@dataclass(frozen=True)
class TorchTensorRTAotBackendConfig(BackendConfig):
    """Options of Torch-TensorRT on an exported graph.

    Attributes:
        compile_config: Settings of Torch-TensorRT.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    compile_config: TorchTensorRTConfig = field(default_factory=TorchTensorRTConfig)
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.compile_config, TorchTensorRTConfig):
            raise refuse(self, "compile_config", "a TorchTensorRTConfig", self.compile_config)
        check_bool(self, "use_cuda_graphs")


class TorchTensorRTAotBackend(Backend[TorchTensorRTAotBackendConfig]):
    """Compiles the whole exported graph once. Its engines cannot be kept: their files would have to be unpickled."""

    config_class = TorchTensorRTAotBackendConfig
    devices = ("cuda",)
    requires = (Requirement("torch_tensorrt", "torch-tensorrt"),)
    complexity = 6

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If the module cannot be exported.
            BackendMachineError: If the library does not work here.
            BackendBuildError: If Torch-TensorRT fails.
            BackendNotInstalledError: If torch_tensorrt is not installed.
        """
        require(self, job)
        try:
            torch_tensorrt = importlib.import_module("torch_tensorrt")
        except Exception as error:  # whatever a native library that does not fit raises
            raise BackendMachineError(self.name, f"torch_tensorrt cannot be loaded here: {error}") from error
        exported = export_program(job, self.name)
        settings = self.config.compile_config.settings
        part = job.narrowed(dict(exported.narrowing.ranges))
        inputs = [_input(torch_tensorrt, spec) for spec in part.graph.inputs.tensors]
        try:
            with torch.cuda.device(job.device), torch.no_grad():
                compiled = torch_tensorrt.dynamo.compile(exported.program, arg_inputs=inputs, **settings)
        except Exception as error:
            raise BackendBuildError(self.name, f"Torch-TensorRT fails: {_first_line(error)}") from error
        execute = _execute(compiled, job, exported.routes)
        precision = module_precision(job)
        if precision == "float32" and not self.config.compile_config.disable_tf32:
            precision = "tf32"
        facts = EngineFacts(precision=precision, reentrant=False, narrowing=exported.narrowing)
        if not self.config.use_cuda_graphs:
            return FunctionEngine(compile_call(job.graph, execute), facts)
        graphs = CudaGraphs(execute, job.graph, alone=True)
        problem = graphs.prepare([flat_call(job, sample) for sample in part.samples])
        facts = replace(facts, notes=() if problem is None else (problem,))
        return FunctionEngine(compile_call(job.graph, graphs), facts, on_close=graphs.close)


def _input(torch_tensorrt: Any, spec: TensorSpec) -> Any:
    if not any(isinstance(size, DynamicDim) for size in spec.shape):
        return torch_tensorrt.Input(shape=tuple(spec.shape), dtype=spec.dtype)
    low, best, high = zip(
        *((s.min, s.opt or s.max, s.max) if isinstance(s, DynamicDim) else (s, s, s) for s in spec.shape), strict=True
    )
    return torch_tensorrt.Input(min_shape=low, opt_shape=best, max_shape=high, dtype=spec.dtype)


def _execute(compiled: Any, job: Job, routes: OutputRoutes) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    output = compile_output(job.graph)

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        given = [tensor.detach().contiguous() for tensor in tensors]
        with torch.no_grad():
            found = compiled(*given)
        found = found if isinstance(found, (tuple, list)) else (found,)
        return output(routes.outputs(found, tensors))

    return execute


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
