"""Where a module's tensors lie: what was built over their addresses must notice when they lie elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["StateAddresses"]

_ALWAYS = 64
_CHUNK = 32


class StateAddresses:
    """Remembers every parameter, buffer and tensor attribute of a module by identity and address.

    Values may change in place. Of more than 64 tensors, the first, the last and 32 others in rotation are looked at in
    one call (a cast or a move takes them all).

    Args:
        module: The module; None has no state.
    """

    def __init__(self, module: torch.nn.Module | None) -> None:
        found = [] if module is None else list(_entries(module))
        self._entries = [(owner, key, tensor, _address(tensor)) for owner, key, tensor in found]
        self._position = 0

    @property
    def kept(self) -> bool:
        """Whether what is looked at this time is where it was."""
        entries = self._entries
        if len(entries) > _ALWAYS:
            start = self._position
            self._position = start + _CHUNK if start + _CHUNK < len(entries) else 0
            entries = [entries[0], *entries[start : start + _CHUNK], entries[-1]]
        for owner, key, tensor, address in entries:
            if owner.get(key) is not tensor or (address and tensor.data_ptr() != address):
                return False
        return True


def _entries(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    for child in module.modules():
        for owner in (child._parameters, child._buffers, child.__dict__):
            for key, tensor in owner.items():
                if isinstance(tensor, torch.Tensor):
                    yield owner, key, tensor


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # no storage: lazy parameters, wrapper subclasses, tensors on meta
        return 0
