"""How much memory is left, on the host within the container's limit, or on a device."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

__all__ = ["free_bytes"]

# Limit and use of a container, cgroup version 2 and version 1 (kernel documentation, admin-guide/cgroup-v2
# and cgroup-v1/memory).
_CONTAINER = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be allocated where tensors of a device live.

    Args:
        device: A device; one whose free memory cannot be asked for counts as the host.
    """
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    free = int(psutil.virtual_memory().available)
    for limit, used in _CONTAINER:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # not there, not readable, or the word "max"
            continue
        free = min(free, max(left, 0))
    return free
