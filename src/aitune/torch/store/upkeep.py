"""Looking after a store: what is in it, whether it is whole, and making room."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from aitune.exceptions import DocumentError
from aitune.torch.store.entry import MANIFEST, Entry
from aitune.torch.store.folder import StoreFolder

__all__ = ["Listed", "clear", "evict", "list_entries", "prune", "verify"]

_LEFT_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Listed:
    """One entry in a list.

    Attributes:
        folder: Where it is.
        entry: What it says, None where it cannot be read.
        problem: Why it cannot be used, None where it can be.
        used: When it was used last, seconds since the epoch.
    """

    folder: Path
    entry: Entry | None
    problem: str | None
    used: float

    @property
    def size(self) -> int:
        """Bytes of its engine files; of all its files where it cannot be read."""
        if self.entry is not None:
            return self.entry.size
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())


def list_entries(root: Path) -> list[Listed]:
    """Return every entry of a store, the one that was used last first. Engine files are not read.

    Args:
        root: The store's folder; one that is not there is empty.
    """
    return sorted((_listed(path) for path in StoreFolder(root).entries()), key=lambda one: one.used, reverse=True)


def verify(root: Path, *, remove: bool = False) -> list[Listed]:
    """Read every file of a store, and return the entries that are damaged.

    Args:
        root: The store's folder.
        remove: Whether to remove them.

    Raises:
        OSError: If one cannot be removed.
    """
    folder = StoreFolder(root)
    damaged = []
    for one in list_entries(root):
        problem = one.problem or (one.entry.damage() if one.entry is not None else None)
        if problem is not None:
            damaged.append(Listed(one.folder, one.entry, problem, one.used))
    for one in damaged if remove else ():
        folder.remove(one.folder)
    return damaged


def prune(root: Path, *, size_limit: int | None = None, unused_seconds: float | None = None) -> list[Listed]:
    """Remove what was used longest ago, and what processes that were ended left behind.

    Args:
        root: The store's folder.
        size_limit: Bytes of engine files that may stay; None for all.
        unused_seconds: Remove what was not used for so long; None for nothing.

    Returns:
        The entries that were removed.

    Raises:
        OSError: If one cannot be removed.
    """
    folder = StoreFolder(root)
    removed = [] if size_limit is None else evict(folder, size_limit)
    if unused_seconds is not None:
        for one in list_entries(root):
            if one.used < time.time() - unused_seconds:
                folder.remove(one.folder)
                removed.append(one)
    _remove_leftovers(folder, _LEFT_SECONDS)
    return removed


def clear(root: Path) -> None:
    """Remove everything that aitune wrote into a store, and the folder if nothing else is in it.

    Raises:
        OSError: If something cannot be removed, or the folder is not its owner's alone: then nothing is.
    """
    folder = StoreFolder(root)
    foreign = folder.foreign()
    if foreign is not None:
        raise PermissionError(foreign)
    for entry in folder.entries():
        folder.remove(entry)
    _remove_leftovers(folder, 0.0)
    for file in (*folder.tunes(), *folder.locks()):
        file.unlink(missing_ok=True)
    nested = [path for path in folder.place.glob("*/*") if path.is_dir()]
    for place in (*nested, *folder.place.glob("*"), folder.place, folder.root):
        with contextlib.suppress(OSError):
            place.rmdir()  # refuses while something is in it that is not ours


def evict(folder: StoreFolder, size_limit: int, keep: Path | None = None) -> list[Listed]:
    """Remove the entries that were used longest ago until engine files take no more than a limit.

    Args:
        folder: The store's folder.
        size_limit: Bytes.
        keep: An entry that stays in any case.

    Raises:
        OSError: If one cannot be removed.
    """
    entries = list_entries(folder.root)
    total = sum(one.size for one in entries)
    removed = []
    for one in reversed(entries):
        if total <= size_limit:
            break
        if one.folder != keep and one.size:
            folder.remove(one.folder)
            removed.append(one)
            total -= one.size
    return removed


def _listed(folder: Path) -> Listed:
    try:
        used = (folder / MANIFEST).stat().st_mtime
    except OSError:
        used = 0.0
    try:
        return Listed(folder, Entry.read(folder), None, used)
    except (OSError, DocumentError) as error:
        return Listed(folder, None, str(error), used)


def _remove_leftovers(folder: StoreFolder, age: float) -> None:
    import filelock

    limit = time.time() - age
    for path in folder.leftovers():
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime <= limit:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)  # noqa: PTH108
    for path in folder.locks():
        with contextlib.suppress(OSError, filelock.Timeout):
            if path.stat().st_mtime <= limit:
                with filelock.FileLock(path, timeout=0):
                    path.unlink(missing_ok=True)
