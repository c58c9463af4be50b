"""Noticing what no version counter tells: looked at now and then, not at every call (decision 14)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.module.slot import SLOT_NAME

__all__ = ["EVERY", "DriftWatch"]

EVERY = 40
"""Calls between two looks; a change is noticed within 50."""

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


@dataclass(frozen=True)
class _Value:
    """A plain value, or the identity of a child, as it was."""

    owner: dict[str, Any]
    key: str
    value: Any

    @property
    def changed(self) -> bool:
        now = self.owner.get(self.key, _MISSING)
        return now is not self.value and (type(now) is not type(self.value) or bool(now != self.value))


@dataclass(frozen=True)
class _Digest:
    """A few words of a tensor's memory, which writes through ``.data``, numpy or fused kernels change as well."""

    tensor: torch.Tensor
    address: int
    words: tuple[tuple[ctypes.c_uint32, int], ...]

    @property
    def changed(self) -> bool:
        return self.tensor.data_ptr() != self.address or any(word.value != seen for word, seen in self.words)


class DriftWatch:
    """Remembers children, flags and plain attributes of a module tree, and a digest of every tensor on the CPU.

    Args:
        module: The module as it was when its engines were validated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._values = tuple(_values(module))
        self._counts = tuple((part._modules, len(part._modules)) for part in module.modules())
        self._digests = tuple(_digests(module))

    @property
    def changed(self) -> bool:
        """Whether anything is different now."""
        return (
            any(len(children) != count for children, count in self._counts)
            or any(value.changed for value in self._values)
            or any(digest.changed for digest in self._digests)
        )


def _values(module: torch.nn.Module) -> Iterator[_Value]:
    for part in module.modules():
        for key, child in part._modules.items():
            yield _Value(part._modules, key, child)
        for key, value in part.__dict__.items():
            if type(value) in _PLAIN and key != SLOT_NAME:
                yield _Value(part.__dict__, key, value)
        if part is not module:  # that of the root is looked at in every call
            yield _Value(part.__dict__, "forward", part.__dict__.get("forward", _MISSING))


def _digests(module: torch.nn.Module) -> Iterator[_Digest]:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_inference():
            continue
        size = tensor.numel() * tensor.element_size()
        if size < 4 or not tensor.is_contiguous():
            continue
        address = tensor.data_ptr()
        places = sorted({0, (size // 2) // 4 * 4, (size - 4) // 4 * 4})
        words = [ctypes.c_uint32.from_address(address + place) for place in places]
        yield _Digest(tensor, address, tuple((word, word.value) for word in words))
