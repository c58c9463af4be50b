"""Which backends there are, and which are tried where, as plain data; classes are imported when asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.availability import missing_requirement
from aitune.torch.backend.base import Backend

__all__ = ["available_backends", "backend_by_name", "default_backends", "missing_requirement"]

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

# Candidates of a strategy that was given none, in the order of trial. Those that suit the device come first;
# the others follow, so that a report shows each with the reason why it was skipped. TorchAO is not among
# them: fewer bits are a decision of the user.
_CPU_ORDER = (
    "ONNXRuntimeBackend",
    "OpenVINOBackend",
    "TorchInductorAotBackend",
    "TorchInductorJitBackend",
    "TensorRTBackend",
    "TorchTensorRTAotBackend",
    "TorchTensorRTJitBackend",
)
_Recipe = tuple[str, dict[str, Any]]
_GRAPHS = {"use_cuda_graphs": True}

# On a GPU most small calls wait for the host, so every engine that can replays its calls as CUDA graphs. Who takes the
# first that works asks TensorRT first, which is near the top where it can express the module. Who tries every candidate
# begins with the module itself as a CUDA graph: it is built in a second, changes no number, and is what is left when
# time runs out early.
_CUDA_FIRST: tuple[_Recipe, ...] = (
    ("TensorRTBackend", _GRAPHS),
    ("TensorRTBackend", {"use_dynamo": False, **_GRAPHS}),
    ("TorchInductorJitBackend", {"mode": "reduce-overhead"}),
    ("TorchEagerBackend", _GRAPHS),
    ("TorchTensorRTAotBackend", _GRAPHS),
    ("TorchTensorRTJitBackend", _GRAPHS),
    ("TorchInductorAotBackend", {}),
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
)
_CUDA_ALL: tuple[_Recipe, ...] = (
    ("TorchEagerBackend", _GRAPHS),
    ("TensorRTBackend", _GRAPHS),
    ("TensorRTBackend", {"use_dynamo": False, **_GRAPHS}),
    ("TorchInductorJitBackend", {"mode": "reduce-overhead"}),
    ("TorchTensorRTAotBackend", _GRAPHS),
    ("TorchTensorRTJitBackend", _GRAPHS),
    ("TorchInductorAotBackend", {}),
    ("ONNXRuntimeBackend", {}),
    ("OpenVINOBackend", {}),
)

# Who tries every candidate leaves this one out on a CPU: it compiles for a minute and more, and on none of
# the models measured so far was it the quickest there. Who takes the first that works reaches it only if the
# others fail.
_ONLY_IN_TURN_ON_CPU = "TorchInductorJitBackend"
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


def default_backends(strategy: str, device: torch.device) -> tuple[Backend[Any], ...]:
    """Return the candidates of a strategy that was given none, in the order of trial.

    Args:
        strategy: Name of the strategy's class; ``FirstWinsStrategy`` gets more candidates than others.
        device: Where the module is.

    Returns:
        Configured backends, also such as cannot be used here.
    """
    if device.type == "cuda":
        recipes = _CUDA_FIRST if strategy == _TAKES_THE_FIRST else _CUDA_ALL
        return tuple(_configured(name, options) for name, options in recipes)
    left_out = () if strategy == _TAKES_THE_FIRST else (_ONLY_IN_TURN_ON_CPU,)
    return tuple(_built_in(name)() for name in _CPU_ORDER if name not in left_out)


def _configured(name: str, options: dict[str, Any]) -> Backend[Any]:
    kind = _built_in(name)
    return kind(kind.config_class(**options))


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
