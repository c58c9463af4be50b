"""How much memory is left, and whether a larger batch will fit in it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from aitune.exceptions import chain_of, said
from aitune.torch.measure.control_group import left_in_control_group

__all__ = ["MemoryForecast", "available_bytes", "is_out_of_memory", "peak_growth_bytes"]

_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "failed to allocate memory",
    "bad_alloc",
    "bad allocation",
)


@dataclass(frozen=True)
class MemoryForecast:
    """What one batch size needed, and from it what others will.

    Activations, inputs and outputs grow in proportion to the batch; what does not grow (weights, workspaces)
    is counted as if it did, so the forecast errs towards "does not fit".

    Args:
        size: Batch size that was run.
        peak_bytes: By how much memory grew while it ran, bytes (``peak_growth_bytes``).
        headroom: Part of the available memory that must stay free.
    """

    size: int
    peak_bytes: int
    headroom: float = 0.2

    def needed_bytes(self, size: int) -> int:
        """Bytes that a batch of ``size`` is expected to need."""
        return math.ceil(self.peak_bytes * size / self.size)

    def fits(self, size: int, available: int) -> bool:
        """Whether ``size`` is expected to fit in ``available`` bytes and leave the headroom free."""
        return self.needed_bytes(size) <= available * (1 - self.headroom)


def available_bytes(device: torch.device) -> int:
    """Bytes that this process may still take: free memory of a cuda device, else of the host.

    On cuda, what torch's allocator holds without using it counts as free. On the host the limit of the
    control group counts as well: a container is killed at its own limit, not at the machine's.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    available = int(psutil.virtual_memory().available)
    left = left_in_control_group()
    return available if left is None else min(available, left)


def peak_growth_bytes(call: Callable[[], object], device: torch.device, *, interval: float = 0.001) -> int:
    """Run ``call`` once and return by how much memory grew at its peak, in bytes; 0 when no growth was seen.

    On the host a thread reads the resident size every ``interval`` seconds, so a peak shorter than that can
    be missed. On cuda torch's cache of free blocks is given back first, and kept blocks show the peak
    afterwards: torch's own peak counters belong to the user and are not reset.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(device)
        output = call()
        torch.cuda.synchronize(device)
        after, _ = torch.cuda.mem_get_info(device)
        del output
        return max(0, int(before - after))
    return _host_growth(call, interval)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says that memory ran out, of host or device."""
    return any(_is_out_of_memory(one) for one in chain_of(error))


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in said(error).lower() for message in _MESSAGES)


def _host_growth(call: Callable[[], object], interval: float) -> int:
    process = psutil.Process()
    done = threading.Event()
    before = int(process.memory_info().rss)
    seen = [before]

    def watch() -> None:
        while not done.wait(interval):
            seen[0] = max(seen[0], int(process.memory_info().rss))

    watcher = threading.Thread(target=watch, name="aitune-memory", daemon=True)
    watcher.start()
    try:
        output = call()
        after = int(process.memory_info().rss)
        del output
    finally:
        done.set()
        watcher.join()
    return max(seen[0], after) - before
