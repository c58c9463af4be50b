"""A copy of a module that a backend may change, while the user's stays as it is."""

from __future__ import annotations

import copy

import torch

from aitune.exceptions import BackendUnsupportedError, said

__all__ = ["twin_of"]


def twin_of(module: torch.nn.Module, backend: str) -> torch.nn.Module:
    """Return a copy of a module that runs its own weights.

    Args:
        module: The user's module.
        backend: Who to name in errors.

    Raises:
        BackendUnsupportedError: If there can be none: it refuses to be copied, or a copy would run the original.
    """
    if any("forward" in part.__dict__ for part in module.modules()):
        raise BackendUnsupportedError(backend, "a forward set on an instance cannot be copied")
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise BackendUnsupportedError(backend, f"the module cannot be copied: {said(error)}") from error
