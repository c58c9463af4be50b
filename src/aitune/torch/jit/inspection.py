"""What an inspection gathers of one module: shapes, dtypes, axes that vary, times and counts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.graph.dims import infer_dims
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.observation import Layout

__all__ = ["Inspected", "Inspection"]

_MAX_CALLS_KEPT = 256


@dataclass(frozen=True)
class Inspected:
    """What was seen of one way in which a module is called.

    Attributes:
        calls: How often.
        inputs: One description a leaf, such as ``x: float32[dim0=1..8, 16]``.
        outputs: The same for what it returned.
        seconds: Time of all calls together, what they call included.
    """

    calls: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seconds: float


class _Form:
    def __init__(self, inputs: Layout, outputs: Layout) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.calls = 0
        self.seconds = 0.0
        self.shapes: dict[tuple[Any, Any], None] = {}

    def as_data(self) -> Inspected:
        shapes = [inputs + outputs for inputs, outputs in list(self.shapes)]
        sizes = infer_dims(shapes, [None] * len(shapes))
        split = len(self.inputs.tensors)
        inputs, outputs = self.inputs.spec(sizes[:split]), self.outputs.spec(sizes[split:])
        return Inspected(self.calls, tuple(map(str, inputs.leaves)), tuple(map(str, outputs.leaves)), self.seconds)


class Inspection:
    """Gathers the calls of one module. Keeps no tensor.

    Args:
        signature: The forward's parameters.
    """

    def __init__(self, signature: CallSignature) -> None:
        self._signature = signature
        self._forms: dict[Any, _Form] = {}
        self.calls = 0
        self.seconds = 0.0

    @property
    def forms(self) -> tuple[Inspected, ...]:
        """The ways in which the module was called, in order of appearance."""
        return tuple(form.as_data() for form in list(self._forms.values()))

    def call(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call the module, and note the call; what the module raises passes unchanged."""
        inputs = self._layout(args, kwargs)
        start = _now(module)
        result = module._call_impl(*args, **kwargs)
        seconds = _now(module) - start
        self.calls += 1
        self.seconds += seconds
        if inputs is not None:
            self._note(inputs, result, seconds)
        return result

    def _layout(self, args: Any, kwargs: Any) -> Layout | None:
        try:
            return Layout.of(self._signature.bind(args, kwargs))
        except Exception:  # noqa: BLE001 - containers of any library are looked into; the call itself must go on
            return None

    def _note(self, inputs: Layout, result: Any, seconds: float) -> None:
        try:
            outputs = Layout.of(result)
            key = inputs.identity(constants=False), outputs.identity(constants=False)
        except Exception:  # noqa: BLE001 - as above
            return
        form = self._forms.setdefault(key, _Form(inputs, outputs))
        form.calls += 1
        form.seconds += seconds
        if len(form.shapes) < _MAX_CALLS_KEPT:
            form.shapes[inputs.shapes, outputs.shapes] = None


def _now(module: torch.nn.Module) -> float:
    """Read the clock; a module on a GPU is waited for."""
    parameter = next(module.parameters(), None)
    if parameter is not None and parameter.is_cuda:
        torch.cuda.synchronize(parameter.device)
    return time.perf_counter()
