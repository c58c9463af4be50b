"""Where a module is in an object: the path that leads to it, and the way back along a path."""

from __future__ import annotations

import logging
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from aitune.torch.module.module import unwrapped

__all__ = ["Place", "module_at", "place_text", "places"]

Place = tuple[tuple[str, Any], ...]
"""Steps: ``("module", "encoder.layer.0")``, ``("attribute", "unet")``, ``("index", 3)``, ``("key", "text")``,
``("key", 7)``."""

_MOST = 100_000
_ENDS = (
    str, bytes, bytearray, int, float, complex, type(None), torch.Tensor, torch.dtype, torch.device,
    type, types.ModuleType, types.FunctionType, logging.Logger,
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Place, torch.nn.Module]]:
    """Yield every module that an object is or holds at any depth, each once, with the shortest path that leads to it.

    Looks into modules, attributes, sequences, and mappings with keys that are text or whole numbers, at the first
    100 000 objects. Calls nothing.
    """
    seen: set[int] = set()
    kept: list[Any] = []  # what goes would leave its address to another
    queue: deque[tuple[Place, Any]] = deque([((), value)])
    while queue and len(kept) < _MOST:
        place, found = queue.popleft()
        found = unwrapped(found)
        if id(found) in seen:
            continue
        parts = [(place, found)]
        if isinstance(found, torch.nn.Module):
            parts = [((*place, *((("module", name),) if name else ())), one) for name, one in found.named_modules()]
        for where, part in parts:
            one = unwrapped(part)  # what was meant
            if id(one) in seen:
                continue
            seen.add(id(one))
            kept.append(one)
            if isinstance(one, torch.nn.Module):
                yield where, one
            queue.extend(((*where, step), item) for step, item in _items(one) if not _is_end(item))


def module_at(value: Any, place: Place) -> torch.nn.Module | None:
    """Return the module at a place, None where there is none."""
    for kind, key in place:
        value = _step(unwrapped(value), kind, key)
    value = unwrapped(value)
    return value if isinstance(value, torch.nn.Module) else None


def place_text(place: Place) -> str:
    """Return a place as a reader writes it."""
    text = ""
    for kind, key in place:
        text += f"[{key!r}]" if kind in ("index", "key") else f".{key}"
    return text.lstrip(".") or "the module itself"


def _is_end(value: Any) -> bool:
    """Whether nothing that is to be saved is behind a value."""
    return isinstance(value, _ENDS) or type(value).__module__.startswith("aitune.torch.module.handle")


def _items(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Mapping):
        yield from ((("key", key), item) for key, item in value.items() if type(key) in (str, int))
    elif isinstance(value, (list, tuple)):
        yield from ((("index", index), item) for index, item in enumerate(value))
    else:
        attributes = getattr(value, "__dict__", {})
        yield from ((("attribute", name), item) for name, item in attributes.items() if name != "_modules")


def _step(value: Any, kind: str, key: Any) -> Any:
    """Follow one step, without running code of the object: attributes are those in its ``__dict__``."""
    if kind == "module" and isinstance(value, torch.nn.Module):
        for name in str(key).split("."):
            value = unwrapped(value)._modules.get(name) if isinstance(unwrapped(value), torch.nn.Module) else None
        return value
    if kind == "attribute":
        return getattr(value, "__dict__", {}).get(key)
    if kind == "key" and isinstance(value, Mapping):
        return value.get(key)
    if kind == "index" and isinstance(value, (list, tuple)) and key < len(value):
        return value[key]
    return None
