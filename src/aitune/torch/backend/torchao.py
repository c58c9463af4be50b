"""Weights or activations of fewer bits by TorchAO, then torch.compile."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.compiled_call import Compilation, compile_ahead, engine_of
from aitune.torch.backend.function_engine import EngineFacts
from aitune.torch.backend.validation import check_bool, check_choice, check_exclusive, refuse
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["TorchAOBackend", "TorchAOBackendConfig"]

_QUANTIZATIONS = ("int8wo", "int8dq", "fp8wo", "fp8dq", "mxfp8dq", "nvfp4dq")
_NEEDS_CUDA = ("fp8wo", "fp8dq", "mxfp8dq", "nvfp4dq")
_CONFIGS = {
    "int8wo": "Int8WeightOnlyConfig",
    "int8dq": "Int8DynamicActivationInt8WeightConfig",
    "fp8wo": "Float8WeightOnlyConfig",
    "fp8dq": "Float8DynamicActivationFloat8WeightConfig",
}
_CAPABILITIES = {"fp8wo": (8, 9), "fp8dq": (8, 9), "mxfp8dq": (10, 0), "nvfp4dq": (10, 0)}
_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"nvfp4|fp4|float4", "float4"),
    (r"int4", "int4"),
    (r"fp8|float8|mx", "float8"),
)
_WITHOUT_GRAPHS: dict[str | None, str | None] = {"reduce-overhead": None, "max-autotune": "max-autotune-no-cudagraphs"}
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class TorchAOBackendConfig(BackendConfig):
    """Options of TorchAO and of the compilation that follows.

    Attributes:
        quantization: A scheme by its short name: ``wo`` means weights only, ``dq`` activations as well.
        quantization_config: A config object of TorchAO instead of a short name.
        mode: Mode of ``torch.compile``.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``.
        filter_fn: ``(module, name) -> bool``, which submodules to quantise; None leaves it to TorchAO.
    """

    quantization: str | None = None
    quantization_config: Any = None
    mode: str | None = "max-autotune"
    fullgraph: bool = False
    dynamic: bool | None = None
    filter_fn: Callable[[Any, str], bool] | None = None

    def __post_init__(self) -> None:
        check_exclusive(self, "quantization", "quantization_config")
        check_choice(self, "quantization", (*_QUANTIZATIONS, None))
        check_choice(self, "mode", (*_MODES, None))
        check_bool(self, "fullgraph")
        check_bool(self, "dynamic", optional=True)
        if self.filter_fn is not None and not callable(self.filter_fn):
            raise refuse(self, "filter_fn", "a function of module and name, or None", self.filter_fn)


class TorchAOBackend(Backend[TorchAOBackendConfig]):
    """Quantises a copy of the module and compiles it."""

    config_class = TorchAOBackendConfig
    devices = ("cpu", "cuda")
    requires = (Requirement("torchao", "torchao"),)
    complexity = 6

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        if self.config.quantization is None and self.config.quantization_config is None:
            return f"no quantization chosen: one of {', '.join(_QUANTIZATIONS)}, or a quantization_config"
        if self.config.quantization in _NEEDS_CUDA and job.device.type != "cuda":
            return f"{self.config.quantization} needs cuda, the module is on {job.device.type}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If the device has no such arithmetic, or nothing of the module is quantised.
            BackendBuildError: If TorchAO or torch.compile fails.
            BackendNotInstalledError: If torchao is not installed.
        """
        require(self, job)
        _refuse_device(self.config.quantization, job, self.name)
        if any("forward" in child.__dict__ for child in job.module.modules()):
            raise BackendUnsupportedError(self.name, "a forward set on an instance cannot be copied")
        try:
            scheme = self.config.quantization_config or _scheme(self.config.quantization)
            owner = copy.deepcopy(job.module)
            quantize = importlib.import_module("torchao.quantization").quantize_
            kinds = [type(parameter.data) for parameter in owner.parameters()]
            quantize(owner, scheme, **({} if self.config.filter_fn is None else {"filter_fn": self.config.filter_fn}))
        except Exception as error:  # what a library of tensor subclasses raises
            raise BackendBuildError(self.name, f"TorchAO fails: {_first_line(error)}") from error
        if kinds == [type(parameter.data) for parameter in owner.parameters()]:
            raise BackendUnsupportedError(self.name, "TorchAO finds no layer to quantise")
        graphs = job.device.type == "cuda" and self.config.mode in _WITHOUT_GRAPHS
        mode = _WITHOUT_GRAPHS.get(self.config.mode, self.config.mode) if graphs else self.config.mode
        how = Compilation(fullgraph=self.config.fullgraph, dynamic=self.config.dynamic, mode=mode)
        own = replace(job, module=owner)
        execute = compile_ahead(own, how, self.name)
        return engine_of(own, execute, EngineFacts(precision=self._precision), cuda_graphs=graphs)

    @property
    def _precision(self) -> Precision:
        name = self.config.quantization or type(self.config.quantization_config).__name__
        for sign, precision in _PRECISIONS:
            if re.search(sign, name, re.IGNORECASE):
                return precision
        return "int8"


def _scheme(name: str | None) -> Any:
    """Return TorchAO's config object of a short name."""
    quantization = importlib.import_module("torchao.quantization")
    if name == "mxfp8dq":
        return importlib.import_module("torchao.prototype.mx_formats").MXDynamicActivationMXWeightConfig()
    if name == "nvfp4dq":
        return importlib.import_module("torchao.prototype.mx_formats").NVFP4DynamicActivationNVFP4WeightConfig()
    return getattr(quantization, _CONFIGS[name or ""])()


def _refuse_device(quantization: str | None, job: Job, backend: str) -> None:
    needed = _CAPABILITIES.get(quantization or "")
    if needed is None or job.device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(job.device)
    if found < needed:
        words = f"{quantization} needs a GPU of compute capability {needed[0]}.{needed[1]} or above"
        raise BackendUnsupportedError(backend, f"{words}, this one has {found[0]}.{found[1]}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
