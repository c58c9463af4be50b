"""Noticing what no version counter tells: looked at now and then, not at every call (decision 14)."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from aitune.torch.module.device_words import device_words, landmarks
from aitune.torch.module.holdings import reachable, tensor_places
from aitune.torch.module.slot import SLOT_NAME

__all__ = ["EVERY", "DriftWatch", "middle_word", "objects_of"]

EVERY = 40
"""Calls between two looks; a change is noticed within 50."""

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()
_NAMED, _ADAPTED = "active_adapter", "peft_config"
"""What a model of PEFT calls its adapter, in more than one way; the layers say which one it is."""
_NO_STATE = "_is_full_backward_hook"
"""Which kind of backward hook was last registered; stays behind when the hook is removed."""


_Word = ctypes.c_uint8 | ctypes.c_uint16 | ctypes.c_uint32 | ctypes.c_uint64


class DriftWatch:
    """Remembers children, flags and plain attributes of a module tree, and a few words of every tensor.

    Args:
        module: The module as it was when its engines were validated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._values = tuple(_values(module))
        self._objects = tuple(
            (part.__dict__, key, value) for part in reachable(module) for key, value in objects_of(part).items()
        )
        parts = reachable(module)
        owners = [owner for part in parts for owner in (part._modules, part._parameters, part._buffers)]
        self._counts = tuple((owner, len(owner)) for owner in owners)
        self._names = tuple((part, frozenset(part.__dict__)) for part in parts)
        self._classes = tuple((part, type(part), type(part).forward) for part in parts)
        self._digests = tuple(_digests(module))
        self._device_words = device_words(list(_readable_tensors(module, "cuda")))

    @property
    def changed(self) -> bool:
        """Whether anything is different now; waits for the device that tensors are on."""
        return self.rebuilt or self.spoiled

    def glance(self) -> bool:
        """Whether anything is different, as far as the host knows; devices are asked, and say so in :meth:`answer`."""
        return self.rebuilt or self._spoiled_here or any(words.ask() for words in self._device_words)

    def answer(self) -> bool:
        """Whether a device, since it was asked, found the contents of a tensor to be others. Never waits."""
        return any(words.answer() for words in self._device_words)

    @property
    def rebuilt(self) -> bool:
        """Whether anything but the contents of tensors is different."""
        return (
            any(len(children) != count for children, count in self._counts)
            or self._values_changed()
            or any(owner.get(key) is not value for owner, key, value in self._objects)
            or any(type(part) is not kind or kind.forward is not code for part, kind, code in self._classes)
            or any(_new_value(part, names) for part, names in self._names)
        )

    @property
    def spoiled(self) -> bool:
        """Whether the contents of a tensor are others, which is for good; waits for the device that it is on."""
        return self._spoiled_here or any(words.changed for words in self._device_words)

    @property
    def _spoiled_here(self) -> bool:
        for tensor, address, words in self._digests:
            if tensor.data_ptr() != address:  # before anything is read: memory that was given up must not be touched
                return True
            for word, value in words:
                if word.value != value:
                    return True
        return False

    def _values_changed(self) -> bool:
        for owner, key, value in self._values:
            now = owner.get(key, _MISSING)
            if now is not value and (type(now) is not type(value) or bool(now != value)):
                return True
        return False


def _new_value(part: torch.nn.Module, names: frozenset[str]) -> bool:
    """Whether a plain attribute was set that was not there; marks that libraries leave are not meant."""
    attributes = part.__dict__
    return len(attributes) > len(names) and any(
        type(value) in _PLAIN and (not key.startswith("_") or hasattr(type(part), key))
        for key, value in list(attributes.items())
        if key not in names and key != SLOT_NAME
    )


def _values(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield where a plain value, a container of such, or a child is, and what it is."""
    seen: set[int] = set()
    for part in reachable(module):
        for key, child in part._modules.items():
            yield part._modules, key, child
        for key, value in part.__dict__.items():
            if key in (_NO_STATE, SLOT_NAME) or (key == _NAMED and _ADAPTED in part.__dict__):
                continue
            if type(value) in _PLAIN or _is_plain_container(value):
                yield part.__dict__, key, copy.copy(value)
            elif _is_settings(value) and id(value) not in seen:
                seen.add(id(value))
                attributes = vars(value)
                yield from ((attributes, name, item) for name, item in attributes.items() if type(item) in _PLAIN)
        if part is not module:  # that of the root is looked at in every call
            yield part.__dict__, "forward", part.__dict__.get("forward", _MISSING)


def objects_of(part: torch.nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module that are functions, settings or other objects, told by identity."""
    return {
        key: value
        for key, value in part.__dict__.items()
        if not (
            key.startswith("_")
            or key == "forward"  # looked at by itself
            or type(value) in _PLAIN
            or isinstance(value, (torch.Tensor, torch.nn.Module))
            or _is_plain_container(value)
        )
    }


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


def _digests(module: torch.nn.Module) -> Iterator[tuple[torch.Tensor, int, list[tuple[_Word, int]]]]:
    """Yield each tensor of the host with its address and a few words of its memory, which every write changes."""
    for tensor in _readable_tensors(module, "cpu"):
        yield tensor, tensor.data_ptr(), [(word, word.value) for word in _words(tensor)]


def _readable_tensors(module: torch.nn.Module, device: str) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for _, _, tensor, _ in tensor_places(module):
        if id(tensor) not in seen and _readable(tensor, device):
            seen.add(id(tensor))
            yield tensor


_WORDS: dict[int, type[_Word]] = {
    1: ctypes.c_uint8,
    2: ctypes.c_uint16,
    4: ctypes.c_uint32,
    8: ctypes.c_uint64,
}


def middle_word(tensor: torch.Tensor) -> _Word | None:
    """Return the memory of the element in the middle of a tensor, None if it cannot be read.

    It may be read only after a look at the tensor's address: memory that was given up must not be touched.
    """
    return _words(tensor)[1] if _readable(tensor, "cpu") else None


def _words(tensor: torch.Tensor) -> list[_Word]:
    """Return the memory of the first, the middle and the last element, whatever the strides."""
    size = tensor.element_size()
    kind = _WORDS.get(size, ctypes.c_uint64)  # of a complex number, its first half
    return [kind.from_address(tensor.data_ptr() + int(place) * size) for place in landmarks(tensor)]


def _readable(tensor: torch.Tensor, device: str) -> bool:
    """Whether it is on such a device, and its memory is there to be read."""
    try:
        plain = tensor.device.type == device and tensor.layout is torch.strided and tensor.numel() > 0
        return plain and tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # no storage: lazy parameters, subclasses
        return False
