"""The objects that a module is made of, with the path at which a reader would find each."""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Node", "contents", "dict_methods", "item_path", "walk"]

_DEPTH = 4  # containers and plain objects below an attribute of a module
_MOST = 200_000
_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_ATOMS = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}


@dataclass(frozen=True, eq=False)
class Node:
    """One object of a module.

    Attributes:
        path: Where it is, as ``encoder.layer.cache[0]``; empty for the module itself.
        value: A dict (of attributes, too), list, deque or set, a tensor, or a generator.
        dotted: Whether items are named by a dot, as attributes are.
    """

    path: str
    value: Any
    dotted: bool = False


def walk(module: torch.nn.Module) -> Iterator[Node]:
    """Yield every container, tensor and generator that a module holds, each once.

    Modules are entered wherever they are held; objects of other classes by their attributes, to a small
    depth, those of torch, numpy and the standard library not at all. Nothing is called on them.
    """
    seen: set[int] = set()
    pending: list[tuple[str, Any, bool, int]] = [("", module, False, 0)]
    while pending and len(seen) < _MOST:
        path, value, dotted, depth = pending.pop()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (torch.Tensor, torch.Generator)):
            yield Node(path, value)
            if isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
                pending.append((f"{path}.grad", value.grad, False, depth))
            continue
        entered = _entered(value, depth)
        if entered is None:
            continue
        if entered is not value:
            seen.add(id(entered))
            dotted = True
        if not isinstance(entered, tuple):
            yield Node(path, entered, dotted)
        depth = 0 if isinstance(value, torch.nn.Module) else depth + 1
        for key, item in reversed(contents(entered)):
            registry = dotted and key in _REGISTRIES
            pending.append((path if registry else item_path(path, key, dotted=dotted), item, registry, depth))


def contents(container: Any) -> list[tuple[Any, Any]]:
    """Return the items of a container as pairs; the members of a set are keys without a value."""
    if isinstance(container, dict):
        return list(dict_methods(container).items(container))
    if isinstance(container, (set, frozenset)):
        return [(member, None) for member in container]
    return list(enumerate(container))


def dict_methods(container: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Return the class whose methods read and write a dict past what a subclass makes of them."""
    return OrderedDict if isinstance(container, OrderedDict) else dict


def item_path(path: str, key: Any, *, dotted: bool) -> str:
    """Return the path of an item of a container."""
    if not dotted:
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else str(key)


def _entered(value: Any, depth: int) -> Any:
    """Return the container whose items are looked at, None for what stays closed."""
    if isinstance(value, torch.nn.Module):
        return vars(value)
    if depth > _DEPTH or isinstance(value, _CLOSED):
        return None
    if isinstance(value, (dict, list, tuple, set, deque)):
        return value
    if type(value).__module__.partition(".")[0] in _FOREIGN:
        return None
    return getattr(value, "__dict__", None)
