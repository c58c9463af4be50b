"""What the control group of this process leaves it of the machine's memory. Imports the standard library alone."""

from __future__ import annotations

from pathlib import Path

__all__ = ["left_in_control_group"]


def left_in_control_group(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes left below the tightest memory limit of this process's control groups; None if there is none.

    Version 2 of the interface, with limits at any level above the process, and the one file of version 1 that
    containers see (Linux documentation, admin-guide/cgroup-v2 and cgroup-v1/memory).
    """
    folder = root
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            folder = root / line[3:].strip().lstrip("/")
    levels = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    left = [_left(level, "memory.max", "memory.current", "inactive_file") for level in levels]
    left.append(_left(root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    known = [value for value in left if value is not None]
    return min(known) if known else None


def _left(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    try:
        limit = int((folder / limit_name).read_text())
        used = int((folder / usage_name).read_text())
        statistics = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or "max": no limit at this level
        return None
    # Cached file pages count as used, but the kernel drops them before it refuses memory.
    return max(0, limit - used + int(statistics.get(cache_name, 0)))
