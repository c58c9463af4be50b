"""Tracing a forward without leaving traces in the module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from aitune.exceptions import BackendUnsupportedError

__all__ = ["preserved"]


@contextlib.contextmanager
def preserved(module: torch.nn.Module, backend: str | None = None) -> Iterator[None]:
    """Put back what a traced forward changes in a module or below it.

    Covers attributes that are set, replaced or removed, the entries of lists, dicts and sets among them, and
    the values of buffers. Costs a copy of the buffers.

    Args:
        module: The module.
        backend: Who to name in the error; None: it is no error.

    Raises:
        BackendUnsupportedError: If the block changed the values of a buffer, which an engine would not do.
    """
    attributes = [(child, dict(child.__dict__), _contents(child)) for child in module.modules()]
    buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
    changed: list[str] = []
    try:
        yield
    finally:
        for child, before, contents in attributes:
            _restore(child, before, contents)
        with torch.no_grad():
            for name, buffer, value in buffers:
                if not _same_bits(buffer, value):  # running statistics change without a new version
                    changed.append(name)
                    buffer.copy_(value)
    if changed and backend is not None:
        raise BackendUnsupportedError(backend, f"forward changes its state at each call: {', '.join(changed)}")


def _contents(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    values = [value for value in module.__dict__.values() if type(value) in (list, dict, set)]
    return [(value, value.copy()) for value in values]


def _restore(module: torch.nn.Module, before: dict[str, Any], contents: list[tuple[Any, Any]]) -> None:
    attributes = module.__dict__
    if attributes.keys() != before.keys() or any(attributes[key] is not before[key] for key in before):
        attributes.clear()
        attributes.update(before)
    for value, copy in contents:
        if _same(value, copy):
            continue
        if isinstance(value, list):
            value[:] = copy
        else:
            value.clear()
            value.update(copy)


def _same(value: Any, copy: Any) -> bool:
    if len(value) != len(copy):
        return False
    if isinstance(value, dict):
        return all(key in copy and item is copy[key] for key, item in value.items())
    if isinstance(value, set):
        return bool(value == copy)
    return all(first is second for first, second in zip(value, copy, strict=True))


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal, NaN being equal to itself."""
    if first.layout is not torch.strided or first.dtype.is_complex:
        return bool(torch.equal(first, second))
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))
