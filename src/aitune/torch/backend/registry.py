"""Which backends there are, and which are tried where, as plain data; classes are imported when asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Sequence
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.availability import missing_requirement
from aitune.torch.backend.base import Backend
from aitune.torch.trial import Trial

__all__ = [
    "available_backends",
    "backend_by_name",
    "default_backends",
    "missing_requirement",
    "stands_in",
    "superfluous",
]

_LOGGER = logging.getLogger(__name__)

_ENTRY_POINTS = "aitune.backends"

_PACKAGE = "aitune.torch.backend"

# Class by name. The module is imported when the class is asked for.
_BUILT_IN = {
    "ONNXRuntimeBackend": f"{_PACKAGE}.onnxruntime",
    "OpenVINOBackend": f"{_PACKAGE}.openvino",
    "TensorRTBackend": f"{_PACKAGE}.tensorrt",
    "TorchAOBackend": f"{_PACKAGE}.torchao",
    "TorchEagerBackend": f"{_PACKAGE}.torch_eager",
    "TorchInductorAotBackend": f"{_PACKAGE}.torch_inductor_aot",
    "TorchInductorJitBackend": f"{_PACKAGE}.torch_inductor_jit",
    "TorchTensorRTAotBackend": f"{_PACKAGE}.torch_tensorrt_aot",
    "TorchTensorRTJitBackend": f"{_PACKAGE}.torch_tensorrt_jit",
}

Candidate = tuple[str, dict[str, Any]]  # a backend's name, and the options that differ from its defaults

# Candidates of a strategy that was given none, in the order of trial; docs/strategies.md has the figures behind them.
# Those that suit the device come first; the others follow, so that a report shows each with the reason why it was
# skipped.
_ELSEWHERE_ON_CPU: tuple[Candidate, ...] = (
    ("TensorRTBackend", {}),
    ("TorchTensorRTAotBackend", {}),
    ("TorchTensorRTJitBackend", {}),
)
# Who tries every candidate gets them quickest to build first, so that a time limit that runs out has seen the most.
# torch.compile comes frozen: that is what it is quickest with, and it serves modules that cannot be exported.
_ALL_ON_CPU: tuple[Candidate, ...] = (
    ("TorchEagerBackend", {"channels_last": True}),
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
    ("TorchInductorAotBackend", {}),
    ("TorchInductorJitBackend", {"freezing": True}),
    *_ELSEWHERE_ON_CPU,
)
# Who takes the first that works gets the documented order, and torch.compile as it comes: it follows changed weights
# and leaves the process when it is closed.
_IN_TURN_ON_CPU: tuple[Candidate, ...] = (
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
    ("TorchInductorAotBackend", {}),
    ("TorchInductorJitBackend", {}),
    *_ELSEWHERE_ON_CPU,
)
_GRAPHS = {"use_cuda_graphs": True}
# On a GPU most small calls wait for the host, so every engine that can replays its calls as CUDA graphs. Who takes the
# first that works asks TensorRT first, which is near the top where it can express the module. Who tries every candidate
# begins with the module itself as a CUDA graph: it is built in a second, changes no number, and is what is left when
# time runs out early.
_CUDA_FIRST: tuple[Candidate, ...] = (
    ("TensorRTBackend", _GRAPHS),
    ("TensorRTBackend", {"use_dynamo": False, **_GRAPHS}),
    ("TorchInductorJitBackend", {"mode": "reduce-overhead"}),
    ("TorchEagerBackend", _GRAPHS),
    ("TorchTensorRTAotBackend", _GRAPHS),
    ("TorchTensorRTJitBackend", _GRAPHS),
    ("TorchInductorAotBackend", _GRAPHS),
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
)
_CUDA_ALL: tuple[Candidate, ...] = (
    ("TorchEagerBackend", _GRAPHS),
    ("TensorRTBackend", _GRAPHS),
    ("TensorRTBackend", {"use_dynamo": False, **_GRAPHS}),
    ("TorchInductorJitBackend", {"mode": "reduce-overhead"}),
    ("TorchTensorRTAotBackend", _GRAPHS),
    ("TorchTensorRTJitBackend", _GRAPHS),
    ("TorchInductorAotBackend", _GRAPHS),
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
)
# Fewer bits are a decision of the user: tried only where a check of theirs says what they may cost.
_FEWER_BITS: tuple[Candidate, ...] = (("TorchAOBackend", {"quantization": "int8dq"}),)

# Both have much the same kernels; the first is for modules that cannot be exported, and for those whose products it is
# quicker with, since it lays weights out in forms that cannot be kept: by up to 1.15 (docs/strategies.md).
_STANDS_IN_FOR = {"TorchInductorJitBackend(freezing=True)": "TorchInductorAotBackend"}
_WITHIN_REACH = 0.85  # speed of the second over that of the best so far, from which on the first may be the best

_TAKES_THE_FIRST = "FirstWinsStrategy"


def available_backends() -> dict[str, type[Backend[Any]]]:
    """Return every backend class by its name: those of aitune, and those of installed plugins.

    A plugin registers a class under the entry-point group ``aitune.backends``; the name of the entry point is
    the backend's name. A plugin that cannot be imported, is no backend, or takes a name that is in use is
    left out, with a line in the log. Whether a backend's library is installed is another question:
    :func:`missing_requirement`.
    """
    found = {name: _built_in(name) for name in _BUILT_IN}
    for point in importlib.metadata.entry_points(group=_ENTRY_POINTS):
        plugin = _plugin(point)
        if plugin is None:
            continue
        if point.name in found and found[point.name] is not plugin:
            _LOGGER.warning("Backend %s of %s is left out: the name is taken.", point.name, point.value)
            continue
        found[point.name] = plugin
    return dict(sorted(found.items()))


def backend_by_name(name: str) -> type[Backend[Any]]:
    """Return a backend class by its name.

    Raises:
        AITuneUserInputError: If there is none of this name.
    """
    if name in _BUILT_IN:
        return _built_in(name)
    found = available_backends()
    if name not in found:
        raise AITuneUserInputError(f"there is no backend {name!r}; there are {', '.join(found)}")
    return found[name]


def default_backends(strategy: str, device: torch.device, *, lower_precision: bool = False) -> tuple[Backend[Any], ...]:
    """Return the candidates of a strategy that was given none, in the order of trial.

    Args:
        strategy: Name of the strategy's class: ``FirstWinsStrategy`` gets a list of its own.
        device: Where the module is.
        lower_precision: Whether int8 is tried as well; it is last in any case.

    Returns:
        Configured backends, also such as cannot be used here.
    """
    on_cpu = _IN_TURN_ON_CPU if strategy == _TAKES_THE_FIRST else _ALL_ON_CPU
    on_cuda = _CUDA_FIRST if strategy == _TAKES_THE_FIRST else _CUDA_ALL
    listed = on_cuda if device.type == "cuda" else on_cpu
    if lower_precision:
        listed += _FEWER_BITS
    return tuple(_configured(name, options) for name, options in listed)


def stands_in(backend: Backend[Any]) -> bool:
    """Whether a default candidate is there for the case that another one cannot be built."""
    return backend.describe() in _STANDS_IN_FOR


def superfluous(backend: Backend[Any], trials: Sequence[Trial]) -> str | None:
    """Return why a default candidate need not be tried after these trials, None if it should be."""
    other = _STANDS_IN_FOR.get(backend.describe())
    known = [trial.speedup for trial in trials if trial.backend.startswith(f"{other}(") and trial.speedup is not None]
    best = max((trial.speedup for trial in trials if trial.accepted and trial.speedup is not None), default=1.0)
    if not known or max(known) >= _WITHIN_REACH * best:
        return None
    return f"{other}, which compiles much the same code, is far behind the best so far ({max(known):.2f} to {best:.2f})"


def _configured(name: str, options: dict[str, Any]) -> Backend[Any]:
    backend = _built_in(name)
    return backend(backend.config_class(**options)) if options else backend()


def _built_in(name: str) -> type[Backend[Any]]:
    found: type[Backend[Any]] = getattr(importlib.import_module(_BUILT_IN[name]), name)
    return found


def _plugin(point: importlib.metadata.EntryPoint) -> type[Backend[Any]] | None:
    try:
        found = point.load()
    except Exception as error:  # noqa: BLE001 - importing a plugin runs foreign code, which raises anything
        _LOGGER.warning("Backend %s (%s) cannot be loaded: %r", point.name, point.value, error)
        return None
    if not isinstance(found, type) or not issubclass(found, Backend):
        _LOGGER.warning("Backend %s (%s) is left out: it is no subclass of Backend.", point.name, point.value)
        return None
    return found
