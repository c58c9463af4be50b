"""Weights or activations of fewer bits by TorchAO in a copy of the module, which torch.compile then compiles."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.compiled import WITHOUT_GRAPHS, compiled_forward, engine_of, warmed_up
from aitune.torch.backend.function_engine import EngineFacts
from aitune.torch.backend.precision import lowest, module_precision
from aitune.torch.backend.twin import twin_of
from aitune.torch.backend.validation import check_bool, check_choice, check_exclusive, refuse
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["TorchAOBackend", "TorchAOBackendConfig"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class _Scheme:
    """A scheme of TorchAO.

    Attributes:
        config: Name of its class in the library.
        precision: What it computes in.
        capability: Compute capability of the cuda device that it needs; None: it runs on the processor as well.
    """

    config: str
    precision: Precision
    capability: tuple[int, int] | None = None


_SCHEMES = {
    "int8wo": _Scheme("torchao.quantization.Int8WeightOnlyConfig", "int8"),
    "int8dq": _Scheme("torchao.quantization.Int8DynamicActivationInt8WeightConfig", "int8"),
    "fp8wo": _Scheme("torchao.quantization.Float8WeightOnlyConfig", "float8", (8, 9)),
    "fp8dq": _Scheme("torchao.quantization.Float8DynamicActivationFloat8WeightConfig", "float8", (8, 9)),
    "mxfp8dq": _Scheme("torchao.prototype.mx_formats.MXDynamicActivationMXWeightConfig", "float8", (10, 0)),
    "nvfp4dq": _Scheme("torchao.prototype.mx_formats.NVFP4DynamicActivationNVFP4WeightConfig", "float4", (10, 0)),
}
_BITS: tuple[tuple[str, Precision], ...] = (
    ("NVFP4", "float4"),
    ("MXFP4", "float4"),
    ("Int4", "int4"),
    ("Float8", "float8"),
    ("MX", "float8"),
    ("Int8", "int8"),
)


@dataclass(frozen=True)
class TorchAOBackendConfig(BackendConfig):
    """Options of TorchAO and of the compilation that follows.

    Attributes:
        quantization: A scheme by its short name: ``wo`` means weights only, ``dq`` activations as well.
        quantization_config: A config object of TorchAO instead of a short name.
        mode: Mode of ``torch.compile``.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``; None makes the graph's dimensions dynamic from the start.
        filter_fn: ``(module, name) -> bool``, which submodules to quantise; None leaves it to TorchAO, which takes
            every ``nn.Linear``.
    """

    quantization: str | None = None
    quantization_config: Any = None
    mode: str | None = "max-autotune"
    fullgraph: bool = False
    dynamic: bool | None = None
    filter_fn: Callable[[Any, str], bool] | None = None

    def __post_init__(self) -> None:
        check_exclusive(self, "quantization", "quantization_config")
        check_choice(self, "quantization", (*_SCHEMES, None))
        check_choice(self, "mode", (*_MODES, None))
        check_bool(self, "fullgraph")
        check_bool(self, "dynamic", optional=True)
        if self.filter_fn is not None and not callable(self.filter_fn):
            raise refuse(self, "filter_fn", "a function of module and name, or None", self.filter_fn)


class TorchAOBackend(Backend[TorchAOBackendConfig]):
    """Quantises a copy of the module and compiles it; the module itself is left alone."""

    config_class = TorchAOBackendConfig
    devices = ("cpu", "cuda")
    requires = (Requirement("torchao", "torchao"),)
    complexity = 6

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        config = self.config
        if config.quantization is None and config.quantization_config is None:
            return f"no quantization chosen: one of {', '.join(_SCHEMES)}, or a quantization_config"
        scheme = _SCHEMES.get(config.quantization or "")
        if scheme is not None and scheme.capability is not None:
            if job.device.type != "cuda":
                return f"{config.quantization} needs cuda, the module is on {job.device.type}"
            if torch.cuda.get_device_capability(job.device) < scheme.capability:
                wanted = ".".join(map(str, scheme.capability))
                return f"{config.quantization} needs a device of compute capability {wanted} or higher"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If the module cannot be copied, nothing in it is quantised, or nothing compiled.
            BackendBuildError: If TorchAO or torch.compile fails.
            BackendNotInstalledError: If torchao is not installed.
        """
        require(self, job)
        graphs = job.device.type == "cuda" and self.config.mode in WITHOUT_GRAPHS
        mode = WITHOUT_GRAPHS[self.config.mode] if graphs else self.config.mode
        twin = twin_of(job.module, self.name)
        precision = self._quantise(twin)
        dynamic = self.config.dynamic
        with _quiet():
            compiled = compiled_forward(job, twin.forward, mode=mode, fullgraph=self.config.fullgraph, dynamic=dynamic)
            execute, narrowing = warmed_up(job, compiled, twin, dynamic=dynamic, backend=self.name)
            facts = EngineFacts(precision=lowest((module_precision(job), precision)), narrowing=narrowing)
            return engine_of(job, execute, facts, twin, cuda_graphs=graphs)

    def _quantise(self, twin: torch.nn.Module) -> Precision:
        """Quantise a module in place, and return what it computes in from then on."""
        with _quiet():
            from torchao.quantization import quantize_

            scheme = _SCHEMES.get(self.config.quantization or "")
            config = _new(scheme.config, self.name) if scheme is not None else self.config.quantization_config
            tied = _tied(twin)
            before = {name: child.weight for name, child in _weighted(twin)}
            try:
                quantize_(twin, config, filter_fn=self.config.filter_fn)
            except Exception as error:
                raise BackendBuildError(self.name, f"TorchAO refuses the module: {_first_line(error)}") from error
        changed = {name for name, child in _weighted(twin) if child.weight is not before.get(name)}
        if not changed:
            which = "no nn.Linear" if self.config.filter_fn is None else "nothing that filter_fn takes"
            raise BackendUnsupportedError(self.name, f"there is nothing to quantise: the module has {which}")
        _tie_again(twin, tied, changed)
        return scheme.precision if scheme is not None else _precision_of(config)


def _weighted(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_modules():
        if isinstance(getattr(child, "weight", None), torch.Tensor):
            yield name, child


def _tied(module: torch.nn.Module) -> list[list[str]]:
    """Return the names of modules that share one weight, group by group."""
    groups: dict[int, list[str]] = {}
    for name, child in _weighted(module):
        groups.setdefault(id(child.weight), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _tie_again(module: torch.nn.Module, tied: list[list[str]], changed: set[str]) -> None:
    """Have modules that shared a weight share the quantised one, which TorchAO makes once for each."""
    for names in tied:
        owners: list[Any] = [module.get_submodule(name) for name in names if name in changed]
        for other in owners[1:]:
            if type(other.weight) is type(owners[0].weight):
                other.weight = owners[0].weight


def _new(path: str, backend: str) -> Any:
    """Make a config of TorchAO by the path of its class."""
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BackendUnsupportedError(backend, f"the installed torchao has no {name}") from error
    return kind()


def _precision_of(config: Any) -> Precision:
    """Return what a config of TorchAO computes in, by the name of its class: the fewest bits that it speaks of."""
    name = type(config).__name__
    dtype = str(getattr(config, "weight_dtype", ""))
    if "int4" in dtype or "int2" in dtype or "int1" in dtype:
        return "int4"
    return next((precision for word, precision in _BITS if word in name), "int8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what TorchAO says about its own compiled extensions and classes."""
    logger = logging.getLogger("torchao")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
