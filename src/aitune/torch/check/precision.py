"""Higher precision: which one a reference is computed in, and the conversion of a module and its inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from aitune.torch.check.walk import walk
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.tree import flatten

__all__ = ["higher_precision", "own_precision", "raise_module", "raised_copy", "raised_sample", "size_when_raised"]

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: kind for kind, real in _REAL.items()}
_HIGHER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def own_precision(module: torch.nn.Module, samples: Iterable[Sample]) -> torch.dtype | None:
    """Return the lowest floating dtype of a module's tensors, else of its inputs; None without any."""
    found = [_real(node.value.dtype) for node in walk(module) if isinstance(node.value, torch.Tensor)]
    kinds = {kind for kind in found if kind is not None}
    if not kinds:
        leaves = [leaf for sample in samples for leaf in flatten((sample.args, dict(sample.kwargs)))[0]]
        kinds = {kind for leaf in leaves if isinstance(leaf, torch.Tensor) and (kind := _real(leaf.dtype)) is not None}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=None)


def higher_precision(own: torch.dtype | None) -> torch.dtype | None:
    """Return the precision of the reference: float64 for float32, float32 for 16 bits; else None."""
    return None if own is None else _HIGHER.get(own)


def size_when_raised(module: torch.nn.Module, target: torch.dtype) -> int:
    """Return the bytes of a module's tensors after conversion."""
    tensors = [node.value for node in walk(module) if isinstance(node.value, torch.Tensor)]
    return sum(tensor.numel() * _raised(tensor.dtype, target).itemsize for tensor in tensors)


def raised_copy(
    module: torch.nn.Module, target: torch.dtype, converted: Callable[[torch.Tensor], None] = lambda _: None
) -> torch.nn.Module:
    """Return a deep copy with its floating and complex tensors converted, without a copy of them in between.

    Args:
        module: The module; it and its tensors stay as they are.
        target: What to convert to.
        converted: Told each tensor that the copy does not need any more.

    Raises:
        Exception: What copying the module raises.
    """
    made: dict[int, Any] = {}
    for node in walk(module):
        tensor = node.value
        if type(tensor) in _PLAIN and not tensor.__dict__ and _raised(tensor.dtype, target) is not tensor.dtype:
            made[id(tensor)] = _converted(tensor, _raised(tensor.dtype, target))
            converted(tensor)
    raised = copy.deepcopy(module, made)
    raise_module(raised, target)  # what has a type or attributes of its own was copied as it is
    return raised


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = tensor.detach().to(dtype)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values.requires_grad_(tensor.requires_grad)


def raise_module(module: torch.nn.Module, target: torch.dtype) -> None:
    """Convert the floating and complex tensors of a module in place, plain attributes too."""
    for node in walk(module):
        if isinstance(node.value, torch.Tensor) and _raised(node.value.dtype, target) is not node.value.dtype:
            node.value.data = node.value.data.to(_raised(node.value.dtype, target))


def raised_sample(sample: Sample, target: torch.dtype) -> Sample:
    """Return a sample with floating and complex tensors converted, and dtypes among its values likewise."""
    leaves, structure = flatten((sample.args, dict(sample.kwargs)))
    args, kwargs = structure.unflatten([_raised_leaf(leaf, target) for leaf in leaves])
    return Sample(args, kwargs, sample.batch_size)


def _raised_leaf(leaf: Any, target: torch.dtype) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(_raised(leaf.dtype, target))
    return _raised(leaf, target) if isinstance(leaf, torch.dtype) else leaf


def _raised(dtype: torch.dtype, target: torch.dtype) -> torch.dtype:
    real = _real(dtype)
    if real is None or torch.finfo(real).eps <= torch.finfo(target).eps:
        return dtype
    return _COMPLEX[target] if dtype.is_complex else target


def _real(dtype: torch.dtype) -> torch.dtype | None:
    if dtype.is_complex:
        return _REAL[dtype]
    return dtype if dtype.is_floating_point else None
