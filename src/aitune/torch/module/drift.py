"""Noticing what no version counter tells: looked at now and then, not at every call (decision 14)."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.module.holdings import reachable, tensor_places

__all__ = ["EVERY", "DriftWatch", "middle_word"]

EVERY = 40
"""Calls between two looks; a change is noticed within 50."""

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()
_NO_STATE = "_is_full_backward_hook"
"""Which kind of backward hook was last registered; stays behind when the hook is removed."""


@dataclass(frozen=True)
class _Value:
    """A plain value, a container of such, or the identity of a child, as it was."""

    owner: dict[str, Any]
    key: str
    value: Any

    @property
    def changed(self) -> bool:
        now = self.owner.get(self.key, _MISSING)
        return now is not self.value and (type(now) is not type(self.value) or bool(now != self.value))


@dataclass(frozen=True)
class _Digest:
    """A few bytes of a tensor's memory, which writes through ``.data``, numpy or fused kernels change as well.

    Attributes:
        tensor: The tensor.
        address: Where its storage was.
        places: Which bytes are read, counted from there: words at the beginning, in the middle and at the end.
        seen: What they were.
    """

    tensor: torch.Tensor
    address: int
    places: tuple[tuple[int, int], ...]
    seen: tuple[bytes, ...]

    @property
    def changed(self) -> bool:
        storage = self.tensor.untyped_storage()  # held while it is read: another thread may put other memory in place
        return storage.data_ptr() != self.address or _read(self.address, self.places) != self.seen


class DriftWatch:
    """Remembers children, flags and plain attributes of a module tree, and a digest of every tensor on the CPU.

    Args:
        module: The module as it was when its engines were validated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._values = tuple(_values(module))
        parts = reachable(module)
        owners = [owner for part in parts for owner in (part._modules, part._parameters, part._buffers)]
        self._counts = tuple((owner, len(owner)) for owner in owners)
        self._names = tuple((part, frozenset(part.__dict__)) for part in parts)
        self._classes = tuple((part, type(part), type(part).forward) for part in parts)
        self._digests = tuple(_digests(module))

    @property
    def changed(self) -> bool:
        """Whether anything is different now."""
        return (
            any(len(children) != count for children, count in self._counts)
            or any(value.changed for value in self._values)
            or any(type(part) is not kind or kind.forward is not code for part, kind, code in self._classes)
            or any(_new_value(part, names) for part, names in self._names)
            or self.spoiled
        )

    @property
    def spoiled(self) -> bool:
        """Whether the contents of a tensor are others, which is for good."""
        return any(digest.changed for digest in self._digests)


def _new_value(part: torch.nn.Module, names: frozenset[str]) -> bool:
    """Whether a plain attribute was set that was not there; marks that libraries leave are not meant."""
    attributes = part.__dict__
    return len(attributes) > len(names) and any(
        type(value) in _PLAIN and (not key.startswith("_") or hasattr(type(part), key))
        for key, value in list(attributes.items())
        if key not in names
    )


def _values(module: torch.nn.Module) -> Iterator[_Value]:
    seen: set[int] = set()
    for part in reachable(module):
        for key, child in part._modules.items():
            yield _Value(part._modules, key, child)
        for key, value in part.__dict__.items():
            if key == _NO_STATE:
                continue
            if type(value) in _PLAIN or _is_plain_container(value):
                yield _Value(part.__dict__, key, copy.copy(value))
            elif _is_settings(value) and id(value) not in seen:
                seen.add(id(value))
                attributes = vars(value)
                yield from (_Value(attributes, name, item) for name, item in attributes.items() if type(item) in _PLAIN)
        if part is not module:  # that of the root is looked at in every call
            yield _Value(part.__dict__, "forward", part.__dict__.get("forward", _MISSING))


def _is_plain_container(value: Any) -> bool:
    """Whether it is a list, tuple, set or dict of a few plain values."""
    if type(value) not in (list, tuple, set, dict) or len(value) > 64:
        return False
    return all(type(item) in _PLAIN for item in (value.values() if isinstance(value, dict) else value))


def _is_settings(value: Any) -> bool:
    """Whether it is an object of a Python class that a module reads, such as the config of a Hugging Face model."""
    if isinstance(value, (torch.nn.Module, torch.Tensor, type)) or callable(value):
        return False
    return type(value).__module__.partition(".")[0] not in ("builtins", "torch") and isinstance(
        getattr(value, "__dict__", None), dict
    )


def _digests(module: torch.nn.Module) -> Iterator[_Digest]:
    seen: set[int] = set()
    for _, _, tensor, _ in tensor_places(module):
        if id(tensor) not in seen and _readable(tensor):
            seen.add(id(tensor))
            address, places = tensor.untyped_storage().data_ptr(), tuple(_places(tensor))
            yield _Digest(tensor, address, places, _read(address, places))


_WORDS: dict[int, type[ctypes.c_uint8] | type[ctypes.c_uint16] | type[ctypes.c_uint32] | type[ctypes.c_uint64]] = {
    1: ctypes.c_uint8,
    2: ctypes.c_uint16,
    4: ctypes.c_uint32,
    8: ctypes.c_uint64,
}


def middle_word(tensor: torch.Tensor) -> ctypes.c_uint8 | ctypes.c_uint16 | ctypes.c_uint32 | ctypes.c_uint64 | None:
    """Return the memory of the element in the middle of a tensor, None if it cannot be read.

    It may be read only after a look at the tensor's address: memory that was given up must not be touched.
    """
    word = _WORDS.get(tensor.element_size())
    if word is None or not _readable(tensor):
        return None
    _, (offset, _), _ = _places(tensor)
    return word.from_address(tensor.untyped_storage().data_ptr() + offset)


def _readable(tensor: torch.Tensor) -> bool:
    """Whether its memory is there to be read by this process."""
    try:
        plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel() > 0
        return plain and tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # no storage: lazy parameters, subclasses
        return False


def _places(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield offset and size of what is read, for any strides: the first, the middle and the last element."""
    size = tensor.element_size()
    for part in (0, 1, 2):
        index = [(length - 1) * part // 2 for length in tensor.shape]
        element = tensor.storage_offset() + sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True))
        yield int(element) * size, size


def _read(address: int, places: tuple[tuple[int, int], ...]) -> tuple[bytes, ...]:
    return tuple(ctypes.string_at(address + offset, size) for offset, size in places)
