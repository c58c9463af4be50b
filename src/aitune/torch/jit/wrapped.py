"""Which modules the user wrapped: their tuning is the user's own matter."""

from __future__ import annotations

import contextlib
import weakref

import torch

from aitune.exceptions import AITuneError
from aitune.torch.module.handle import Handle, find_handle, handles

__all__ = ["handle_of_ours", "is_below_wrapped", "is_wrapped"]

_ours: weakref.WeakSet[Handle] = weakref.WeakSet()


def handle_of_ours(module: torch.nn.Module) -> Handle:
    """Return the handle through which just-in-time tuning tunes a module."""
    handle = find_handle(module)
    if handle is None:
        handle = Handle(module)
        _ours.add(handle)
    return handle


def is_wrapped(module: torch.nn.Module) -> bool:
    """Whether ``ait.Module`` wrapped the module."""
    handle = find_handle(module)
    return handle is not None and handle not in _ours


def is_below_wrapped(module: torch.nn.Module) -> bool:
    """Whether ``ait.Module`` wrapped a module that holds this one."""
    for handle in handles():
        with contextlib.suppress(AITuneError):  # the module went meanwhile
            if handle not in _ours and any(part is module for part in handle.module.modules()):
                return True
    return False
