"""What one side of a call looks like: structure, shapes, dtypes and the values that are no tensors."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from aitune.torch.graph.dims import DynamicDim, Size
from aitune.torch.graph.tree import Path, Structure, path_text

__all__ = [
    "CallSpec",
    "Constant",
    "Leaf",
    "Opaque",
    "TensorSpec",
    "Varying",
    "constant_key",
    "constant_or_opaque",
    "is_plain_tensor",
    "is_tensor",
    "same_constant",
]

_CONSTANT_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    range,
)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a call.

    Attributes:
        path: Where it is; for inputs the first element is the parameter's name.
        shape: Size of each axis, a number or a dimension.
        dtype: Its dtype.
        device: Its device.
    """

    path: Path
    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        sizes = (f"{s.name}={s.min}..{s.max}" if isinstance(s, DynamicDim) else str(s) for s in self.shape)
        return f"{path_text(self.path)}: {str(self.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"

    def accepts(self, value: Any) -> bool:
        """Whether rank, dtype, device and every size on its own fit; equality between axes is the graph's to judge."""
        return bool(
            is_plain_tensor(value)
            and value.dtype is self.dtype
            and value.device == self.device
            and value.dim() == len(self.shape)
            and all(_size_fits(size, seen) for size, seen in zip(self.shape, value.shape, strict=True))
        )


@dataclass(frozen=True)
class Constant:
    """A leaf that is no tensor and belongs to the graph's identity: a flag, a scalar, a string, None."""

    path: Path
    value: Any

    def __str__(self) -> str:
        return f"{path_text(self.path)} = {self.value!r}"

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is the same constant: 1, 1.0 and True are three."""
        return same_constant(self.value, value)


@dataclass(frozen=True)
class Opaque:
    """A leaf of a type that cannot be compared between calls; a graph with one stays with the original."""

    path: Path
    kind: str
    value: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {self.kind}"

    def accepts(self, value: Any) -> bool:  # noqa: ARG002
        """Return False: nothing is known to be the same."""
        return False


@dataclass(frozen=True)
class Varying:
    """A leaf that is no tensor and changes from call to call: an engine has to take it as it takes tensors.

    Attributes:
        path: Where it is.
        kind: Its exact type.
        value: That of the first recorded call, for calls that are made up.
    """

    path: Path
    kind: type
    value: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{path_text(self.path)}: any {self.kind.__name__}"

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is of the type."""
        return type(value) is self.kind


Leaf = TensorSpec | Constant | Varying | Opaque
"""One leaf of a call."""


@dataclass(frozen=True)
class CallSpec:
    """The inputs or the outputs of a graph.

    Attributes:
        structure: How the leaves are nested.
        leaves: One entry a leaf, in the order of :func:`~aitune.torch.graph.tree.flatten`.
    """

    structure: Structure
    leaves: tuple[Leaf, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors among the leaves, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorSpec))

    @property
    def varying(self) -> tuple[Varying, ...]:
        """The leaves that an engine must take beside the tensors, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Varying))

    @property
    def opaque(self) -> tuple[Opaque, ...]:
        """The leaves that nothing can be said about."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Opaque))

    def select_tensors(self, leaves: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Pick the tensors out of all leaves of a call."""
        return tuple(value for leaf, value in zip(self.leaves, leaves, strict=True) if isinstance(leaf, TensorSpec))

    def unflatten(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Put a value together from its tensors; the other leaves are those of the spec."""
        supply = iter(tensors)
        return self.structure.unflatten(
            [next(supply) if isinstance(leaf, TensorSpec) else leaf.value for leaf in self.leaves]
        )


def is_tensor(value: Any) -> bool:
    """Whether a leaf is a tensor or parameter itself, not of a subclass."""
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def is_plain_tensor(value: Any) -> bool:
    """Whether a leaf is of the only kind that an engine is given: strided, all of its meaning in shape and values."""
    return is_tensor(value) and value.layout is torch.strided and not value.is_nested and not value.is_quantized


def constant_or_opaque(path: Path, value: Any) -> Constant | Opaque:
    """Describe a leaf that is no tensor."""
    if isinstance(value, (enum.Enum, type, types.FunctionType)) or type(value) in _CONSTANT_TYPES:
        return Constant(path, value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return Constant(path, value)
    return Opaque(path, f"{type(value).__module__}.{type(value).__qualname__}", value)


def constant_key(value: Any) -> Hashable:
    """Return what two constants have in common if they are the same: type and value.

    NaN is the same as itself, 0.0 and -0.0 are not the same, nor are 1, 1.0 and True.
    """
    kind = type(value)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    return kind, id(value) if isinstance(value, enum.Enum) else value


def same_constant(first: Any, second: Any) -> bool:
    """Whether two leaves that are no tensors are the same; see :func:`constant_key`."""
    return type(first) is type(second) and constant_key(first) == constant_key(second)


def _size_fits(size: Size, seen: int) -> bool:
    return size.min <= seen <= size.max if isinstance(size, DynamicDim) else size == seen
