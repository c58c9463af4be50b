"""Weights or activations of fewer bits by TorchAO, then torch.compile. Options only in this version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.validation import check_bool, check_choice, check_exclusive, refuse
from aitune.torch.graph.job import Job

__all__ = ["TorchAOBackend", "TorchAOBackendConfig"]

_QUANTIZATIONS = ("int8wo", "int8dq", "fp8wo", "fp8dq", "mxfp8dq", "nvfp4dq")
_NEEDS_CUDA = ("fp8wo", "fp8dq", "mxfp8dq", "nvfp4dq")
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
        """Refuse: engines of this backend are not built yet.

        Raises:
            BackendUnsupportedError: Always, with the reason.
            BackendNotInstalledError: If torchao is not installed.
        """
        require(self, job)
        raise BackendUnsupportedError(self.name, "not built yet in this version of aitune")
