"""Tensors of a module that give up their memory for a while, their values waiting on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from aitune.torch.check.bits import storage_key
from aitune.torch.check.walk import walk

__all__ = ["SetAside"]

_LARGE = 1 << 20  # bytes; smaller ones are not worth two copies
_HELD_BACK = 64 << 20  # bytes that torch's allocator may keep of what was set aside


class SetAside:
    """Takes the memory of tensors away and brings it back. They must not be looked at in between.

    What shares their memory (views, detached aliases) comes back with them. A tensor of which another one of the
    module, or of ``others``, is a view keeps its memory.

    Args:
        module: Whose tensors are to be set aside.
        others: Tensors that are looked at meanwhile.
    """

    def __init__(self, module: torch.nn.Module, others: Iterable[torch.Tensor]) -> None:
        own = [node.value for node in walk(module) if isinstance(node.value, torch.Tensor)]
        self._users = Counter(storage_key(tensor) for tensor in (*own, *others))
        self._waiting: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        self._held_back = 0

    def put(self, tensor: torch.Tensor) -> None:
        """Set a tensor aside, if its memory is its own and large enough to be worth it."""
        key = storage_key(tensor)
        if key is None or self._users[key] != 1:
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() >= _LARGE and storage.resizable():
            values = _bytes(storage).to("cpu", copy=True)
            storage.resize_(0)
            self._waiting.append((storage, values))
            self._give_back(len(values), storage.device)

    def bring_back(self) -> None:
        """Give every tensor its memory and its values again.

        Raises:
            RuntimeError: If the device has no room for them any more; the module is of no use then.
        """
        while self._waiting:
            storage, values = self._waiting[-1]
            storage.resize_(len(values))
            _bytes(storage).copy_(values)
            self._waiting.pop()

    def _give_back(self, freed: int, device: torch.device) -> None:
        """Give the device what its allocator keeps: a block that was freed holds no larger tensor."""
        self._held_back += freed
        if device.type == "cuda" and self._held_back >= _HELD_BACK:
            torch.cuda.empty_cache()
            self._held_back = 0


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the memory of a storage as a tensor, with a version counter of its own."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
