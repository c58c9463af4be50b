"""What a module tree holds: its modules, those kept in lists and dicts included, and every tensor with its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["modules_in", "reachable", "tensor_places"]

_DEEP = 3
"""How deep lists, tuples and dicts within each other are looked into."""
_LONG = 256
"""Containers with more entries are data, and not looked into."""


def reachable(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the module and all below it, also those that it keeps in plain containers, where torch does not see them.

    Each once, in a stable order.
    """
    found: dict[int, torch.nn.Module] = {}
    waiting = [module]
    while waiting:
        for part in waiting.pop().modules():
            if id(part) not in found:
                found[id(part)] = part
                waiting += [value for _, _, value in _inside(part) if isinstance(value, torch.nn.Module)]
    return list(found.values())


def tensor_places(module: torch.nn.Module) -> Iterator[tuple[Any, Any, torch.Tensor, bool]]:
    """Yield container, key, tensor and whether it is a parameter, for every tensor that the tree holds."""
    for part in reachable(module):
        for owner in (part._parameters, part._buffers, part.__dict__):
            for key, tensor in owner.items():
                if isinstance(tensor, torch.Tensor):
                    yield owner, key, tensor, owner is part._parameters
        for owner, key, value in _inside(part):
            if isinstance(value, torch.Tensor):
                yield owner, key, value, False


def _inside(part: torch.nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """Yield container, key and value of what is in the lists, tuples and dicts among a module's plain attributes."""
    own = (part._parameters, part._buffers, part._modules)
    for value in part.__dict__.values():
        if not any(value is container for container in own):
            yield from _entries(value, _DEEP)


def _entries(value: Any, depth: int) -> Iterator[tuple[Any, Any, Any]]:
    if depth == 0 or type(value) not in (list, tuple, dict) or len(value) > _LONG:
        return
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key, item
        yield from _entries(item, depth - 1)


def modules_in(value: Any, depth: int, seen: set[int] | None = None) -> Iterator[torch.nn.Module]:
    """Yield the modules that an object is or holds: in attributes, sequences and mappings, a few levels deep.

    Args:
        value: Any object.
        depth: How many levels to look into.
        seen: Ids of what was looked into already; None for nothing.
    """
    seen = set() if seen is None else seen
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield value
        return
    items: list[Any] = []
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        items = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        items = list(vars(value).values())
    for item in items:
        yield from modules_in(item, depth - 1, seen)
