"""A few words of every tensor on a CUDA device, compared on the stream and read later: no call waits for the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch

__all__ = ["DeviceWords", "device_words", "landmarks"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""By the size of an element: bits are compared, so that NaN equals itself. Of 16 bytes, the first half."""


class DeviceWords:
    """Remembers the first, the middle and the last element of tensors on one device.

    Args:
        tensors: What to look at, all on one CUDA device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._device = tensors[0].device
        self._places = tuple((tensor, tensor.data_ptr()) for tensor in tensors)
        groups: dict[torch.dtype, list[torch.Tensor]] = {}
        with torch.inference_mode(False):
            for tensor in tensors:
                for word in _words(tensor):
                    groups.setdefault(word.dtype, []).append(word)
            self._groups = tuple((tuple(words), torch.cat(words)) for words in groups.values())
            self._answer = torch.zeros(1, dtype=torch.bool, pin_memory=True)
        torch.cuda.current_stream(self._device).synchronize()  # what was is known on every stream
        self._asked: torch.cuda.Event | None = None
        self._lock = threading.Lock()

    @property
    def changed(self) -> bool:
        """Whether anything is different now; waits for the device."""
        if self._moved:
            return True
        if _unobservable():
            return False
        with torch.cuda.device(self._device):
            return bool(self._differences().item())

    def ask(self) -> bool:
        """Have the device compare, unless an answer is still to come; True if tensors lie elsewhere already."""
        if self._moved:
            return True
        if self._asked is None and not _unobservable() and self._lock.acquire(blocking=False):
            try:
                with torch.cuda.device(self._device):
                    self._answer.copy_(self._differences(), non_blocking=True)
                    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record()
                self._asked = event
            finally:
                self._lock.release()
        return False

    def answer(self) -> bool:
        """Return whether the device found a difference when it was asked; False as long as it has not come to it."""
        event = self._asked
        if event is None or _unobservable() or not event.query():  # type: ignore[no-untyped-call]
            return False
        differs = bool(self._answer[0])
        self._asked = None
        return differs

    @property
    def _moved(self) -> bool:
        return any(tensor.data_ptr() != address for tensor, address in self._places)

    def _differences(self) -> torch.Tensor:
        with torch.inference_mode():
            found = [(torch.cat(words) != before).any() for words, before in self._groups]
            return found[0].reshape(1) if len(found) == 1 else torch.stack(found).any().reshape(1)


def device_words(tensors: Sequence[torch.Tensor]) -> tuple[DeviceWords, ...]:
    """Return what remembers the tensors, by their devices."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    return tuple(DeviceWords(group) for group in by_device.values())


def landmarks(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return where the first, the middle and the last element of a tensor lie, in elements from its beginning."""
    return tuple(
        sum((length - 1) * part // 2 * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        for part in (0, 1, 2)
    )


def _words(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the memory of elements as tensors of one integer, whatever the strides."""
    size = tensor.element_size()
    integer = _INTEGERS[size]
    scale = size // integer.itemsize
    for place in sorted(set(landmarks(tensor))):
        word = torch.empty(0, dtype=integer, device=tensor.device)
        yield word.set_(tensor.untyped_storage(), (tensor.storage_offset() + place) * scale, (1,), (1,))


def _unobservable() -> bool:
    """Whether operations of ours would be recorded by somebody: a graph that is captured, or a mode of the user."""
    return torch.cuda.is_current_stream_capturing() or torch._C._len_torch_dispatch_stack() > 0
