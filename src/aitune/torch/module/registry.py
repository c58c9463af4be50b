"""Which handle belongs to which module: a weak registry, so that neither keeps the other's memory."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from aitune.torch.module.handle import Handle

__all__ = ["find", "handles", "register", "unique_name"]

_lock = threading.RLock()
_handles: dict[int, tuple[weakref.ref[torch.nn.Module], Handle]] = {}


def register(module: torch.nn.Module, handle: Handle) -> None:
    """Remember the handle of a module, in place of an earlier one, until the module is gone."""
    key = id(module)

    def forget(reference: weakref.ref[torch.nn.Module]) -> None:
        with _lock:
            entry = _handles.get(key)
            if entry is not None and entry[0] is reference:
                del _handles[key]

    with _lock:
        _handles[key] = weakref.ref(module, forget), handle


def find(module: torch.nn.Module) -> Handle | None:
    """Return the handle of a module, None if it has none."""
    with _lock:
        entry = _handles.get(id(module))
    return entry[1] if entry is not None and entry[0]() is module else None


def handles() -> tuple[Handle, ...]:
    """Return the handles of all living modules, in the order in which they were wrapped."""
    with _lock:
        return tuple(handle for reference, handle in _handles.values() if reference() is not None)


def unique_name(wanted: str, module: torch.nn.Module) -> str:
    """Return a name that no other living module has: the wanted one, or with a number behind it."""
    taken = _names_but_of(module)
    if wanted in taken:
        gc.collect()  # a module that was let go, but is part of a cycle, must not hold a name
        taken = _names_but_of(module)
    name, number = wanted, 1
    while name in taken:
        name = f"{wanted}-{number}"
        number += 1
    return name


def _names_but_of(module: torch.nn.Module) -> set[str]:
    with _lock:
        living = [(reference(), handle.name) for reference, handle in _handles.values()]
    return {name for other, name in living if other is not None and other is not module}
