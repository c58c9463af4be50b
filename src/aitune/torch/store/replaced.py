"""What somebody put into a library's places: modules call it by the name of the place and do not tell who filled it.

Kernels that patch a model, an attention function that was registered, two functions of torch that were exchanged, hooks
on every module.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from aitune.torch.store.canonical import Canonical
from aitune.torch.store.code import LIBRARIES, is_library, write_foreign

__all__ = ["write_replacements"]

# Files of libraries in which functions are looked up by a word of a module's config.
_REGISTRIES_OF_FUNCTIONS = frozenset(
    f"transformers.{name}" for name in ("modeling_utils", "masking_utils", "modeling_rope_utils", "activations")
)
_OF_TORCH = (torch, torch.nn.functional, torch.nn.init, torch.special, torch.linalg, torch.fft)
_HOOKS_ON_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_WRAPS = (functools.partial, functools._lru_cache_wrapper)


def write_replacements(out: Canonical, module: torch.nn.Module) -> None:
    """Write what was put into torch, or into the files that library modules come from, and hooks on all modules."""
    for registry in _HOOKS_ON_ALL:
        for hook in vars(torch.nn.modules.module).get(registry, {}).values():
            out.mark(registry)
            out.write(hook, registry)
    out.write(torch.Tensor, "torch.Tensor")  # with every method that is not its own
    homes = {type(part).__module__ for part in module.modules()}
    watched = [sys.modules[name] for name in sorted(homes | _REGISTRIES_OF_FUNCTIONS) if _is_watched(name)]
    for place in (*_OF_TORCH, *watched):
        for name, value in _found(place):
            label = f"{place.__name__}.{name}"
            if _is_foreign(value, place):
                out.mark("replaced", label.encode())
                write_foreign(out, value, label)
            elif type(value) in _FUNCTIONS and value.__name__ != name:  # also one of its own, under another's name
                out.mark("exchanged", f"{label} {value.__module__}:{value.__qualname__}".encode())


def _is_watched(name: str) -> bool:
    return name in sys.modules and is_library(name) and not name.startswith(("torch.", "aitune."))


def _found(place: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what can be called in a library's module, and in registries there."""
    for name, value in sorted(vars(place).items()):
        found = [(name, value)]
        if isinstance(value, Mapping) and (name.isupper() or type(value) is not dict):
            found = sorted((f"{name}[{key!r}]", item) for key, item in value.items() if isinstance(key, str))
        for label, item in found:
            if callable(item) and not isinstance(item, (type, types.ModuleType)):
                yield label, item


def _is_foreign(value: Any, place: types.ModuleType) -> bool:
    """Whether it comes from neither the place's own package nor one that everybody builds on."""
    if type(value) is types.FunctionType:
        # A decorator of torch or of the standard library is at home there; its wrapper names what it decorates.
        return any(_is_other(name, place) for name in (value.__globals__.get("__name__"), value.__module__))
    if type(value) in _WRAPS:
        inner = value.func if isinstance(value, functools.partial) else value.__wrapped__
        return (place in _OF_TORCH and isinstance(value, functools.partial)) or _is_foreign(inner, place)
    if type(value) in _FUNCTIONS:
        return False
    return not is_library(type(value).__module__) or type(value).__module__ in ("wrapt", "_wrappers")


def _is_other(name: Any, place: types.ModuleType) -> bool:
    home = str(name or "").partition(".")[0]
    return home != place.__name__.partition(".")[0] and home not in LIBRARIES - {"aitune"}
