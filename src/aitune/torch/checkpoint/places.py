"""Where a module is in an object: the path that leads to it, and the way back along a path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from aitune.torch.module.module import unwrapped

__all__ = ["Place", "module_at", "place_text", "places"]

Place = tuple[tuple[str, Any], ...]
"""Steps: ``("module", "encoder.layer.0")``, ``("attribute", "unet")``, ``("index", 3)``, ``("key", "text")``."""

_DEPTH = 4


def places(value: Any) -> Iterator[tuple[Place, torch.nn.Module]]:
    """Yield every module that an object is or holds, each once, with the first path that leads to it.

    Looks into modules, attributes, sequences and mappings with text keys, a few levels deep. Calls nothing.
    """
    seen: set[int] = set()
    yield from _places(value, (), seen, _DEPTH)


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


def _places(value: Any, place: Place, seen: set[int], depth: int) -> Iterator[tuple[Place, torch.nn.Module]]:
    value = unwrapped(value)
    if depth < 0 or id(value) in seen or isinstance(value, type):
        return
    if isinstance(value, torch.nn.Module):
        for name, child in value.named_modules():
            child = unwrapped(child)  # noqa: PLW2901 - what was meant
            if id(child) not in seen:
                seen.add(id(child))
                yield (*place, *((("module", name),) if name else ())), child
        return
    seen.add(id(value))
    for step, item in _items(value):
        yield from _places(item, (*place, step), seen, depth - 1)


def _items(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Mapping):
        yield from ((("key", key), item) for key, item in value.items() if type(key) is str)
    elif isinstance(value, (list, tuple)):
        yield from ((("index", index), item) for index, item in enumerate(value))
    elif not isinstance(value, torch.Tensor):
        yield from ((("attribute", name), item) for name, item in getattr(value, "__dict__", {}).items())


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
