"""One tensor, remembered by identity, memory, version and, where there is room, by a copy."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from aitune.torch.check.bits import copy_of, digest, same_bits
from aitune.torch.graph.spec import is_tensor

__all__ = ["TensorState", "size_in_bytes"]

_ALWAYS_COMPARED = 1 << 20  # bytes; smaller buffers are compared by value even if no version counter moved


@dataclass(frozen=True, eq=False)
class TensorState:
    """A tensor of a module and what it was.

    Attributes:
        path: Where it is.
        value: The tensor itself.
        alias: A tensor over the memory that it had.
        version: Its version counter; None for one without (made in inference mode).
        requires_grad: Its flag.
        grad: Its gradient, by identity.
        copy: Its values, on the host for a parameter of a device; None where there was no room.
        digest: Digest of its values where there is no copy beside it.
    """

    path: str
    value: torch.Tensor
    alias: torch.Tensor
    version: int | None
    requires_grad: bool
    grad: torch.Tensor | None
    copy: torch.Tensor | None
    digest: Hashable

    @classmethod
    def of(cls, path: str, value: torch.Tensor, *, copied: bool) -> TensorState:
        """Remember a tensor.

        Args:
            path: Where it is.
            value: The tensor.
            copied: Whether to keep its values; else they are watched, but cannot be put back.
        """
        alias, copy = value.detach(), None
        if copied and _is_plain(value):
            parameter = isinstance(value, torch.nn.Parameter)
            copy = alias.cpu() if parameter and value.device.type not in ("cpu", "meta") else copy_of(alias)
        return cls(
            path=path,
            value=value,
            alias=alias,
            version=_version(value),
            requires_grad=value.requires_grad,
            grad=value.grad if value.is_leaf else None,
            copy=copy,
            digest=digest(value) if _is_plain(value) and (copy is None or copy.device != value.device) else None,
        )

    def changed(self, *, deep: bool) -> bool:
        """Whether memory, values or the flag are others.

        Args:
            deep: Whether to compare the values of parameters and large tensors whose version counter did not move, too.
        """
        if self._moved() or self.value.requires_grad != self.requires_grad:
            return True
        touched = self.version is None or _version(self.value) != self.version
        large = isinstance(self.value, torch.nn.Parameter) or size_in_bytes(self.value) > _ALWAYS_COMPARED
        if large and not touched and not deep:
            return False
        if self.copy is not None and self.copy.device == self.value.device:
            return not same_bits(self.value, self.copy)
        return digest(self.value) != self.digest if _is_plain(self.value) else touched

    def restore(self, *, deep: bool) -> bool:
        """Put flags, memory and values back; nothing is written where nothing differs.

        Returns:
            Whether that was possible.
        """
        value = self.value
        if value.is_leaf and value.requires_grad != self.requires_grad:
            value.requires_grad_(self.requires_grad)
        if value.is_leaf and value.grad is not self.grad:
            value.grad = self.grad
        if self._moved():
            value.data = self.alias
        if not self.changed(deep=deep):
            return True
        if self.copy is None:
            return not _is_plain(value)
        with torch.inference_mode(value.is_inference()), torch.no_grad():
            value.data.copy_(self.copy)  # data: the version counter is to tell of the forward's writes, not of ours
        return True

    def _moved(self) -> bool:
        value, alias = self.value, self.alias
        same = (
            value.shape == alias.shape
            and value.dtype is alias.dtype
            and value.device == alias.device
            and value.layout is alias.layout
        )
        if not same or not _is_plain(value) or value.layout is not torch.strided:
            return not same
        return value.data_ptr() != alias.data_ptr() or value.stride() != alias.stride()


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether values can be read as memory; wrapper subclasses (DTensor, ...) are told by version only."""
    return is_tensor(tensor) and tensor.device.type != "meta"
