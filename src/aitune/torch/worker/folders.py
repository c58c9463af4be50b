"""Where builds put their files: a folder a tune below the cache root; logs stay, engine files go with the engine."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import shutil
import tempfile
import time
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment, unused-ignore]

__all__ = ["BuildFolders"]

_log = logging.getLogger(__name__)

_KEPT_SECONDS = 7 * 24 * 3600.0
_ROOM = 1 << 30
"""Bytes that a build may well need: sources, objects and an engine or two."""


class BuildFolders:
    """Folders and logs of the builds of one tune.

    Args:
        cache_dir: Root of everything that aitune writes; where it cannot be written to, or has little room, a temporary
            folder serves.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._root = _make_root(cache_dir / "builds")
        held = _hold(self._root)
        if held is not None:
            weakref.finalize(self, os.close, held)
        self._numbers = itertools.count()

    @staticmethod
    def clear(cache_dir: Path) -> None:
        """Remove what earlier tunes left below a cache root; nothing that aitune did not name, or that is in use."""
        builds = cache_dir / "builds"
        if builds.is_dir():
            _prune(builds, keep_seconds=0.0)

    def tidy(self) -> None:
        """Remove logs that hold nothing, and the folder if nothing is left in it."""
        with contextlib.suppress(OSError):
            for entry in self._root.iterdir():
                if entry.suffix == ".log" and entry.is_file() and entry.stat().st_size == 0:
                    entry.unlink()
                elif entry.is_dir() and not any(entry.iterdir()):
                    entry.rmdir()
            self._root.rmdir()  # refuses while something is left

    @property
    def root(self) -> Path:
        """The folder of this tune."""
        return self._root

    def new(self, *labels: str) -> tuple[Path, Path]:
        """Return a folder and a log of a build's own; neither exists yet.

        Args:
            labels: What the build is, such as module, graph and backend, for the file names.
        """
        name = f"{next(self._numbers):03d}-" + "-".join(_safe(label) for label in labels if label)
        return self._root / f"{name}.files", self._root / f"{name}.log"


def _safe(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", label)[:60].strip("_.")


def _make_root(builds: Path) -> Path:
    prefix = time.strftime("%Y%m%d-%H%M%S-")
    try:
        builds.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(builds)
        _need_room(builds)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=builds))
    except OSError as error:
        _log.warning("cannot write below %s (%s); builds go to a temporary folder", builds, error)
        return Path(tempfile.mkdtemp(prefix=f"aitune-{prefix}"))


def _need_room(builds: Path) -> None:
    """Refuse a disk that has little room left, where the one of temporary files has more.

    Raises:
        OSError: If it is so.
    """
    free = shutil.disk_usage(builds).free
    if free < _ROOM and shutil.disk_usage(tempfile.gettempdir()).free > free:
        raise OSError(errno.ENOSPC, f"{free >> 20} MB are left")


def _hold(folder: Path) -> int | None:
    """Mark a folder as in use until the descriptor is closed, by whatever ends this process; None where that fails."""
    if fcntl is None:
        return None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return descriptor
    return None


def _in_use(folder: Path) -> bool:
    """Whether a tune of another process, or of this one, is at work in a folder."""
    if fcntl is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _prune(builds: Path, keep_seconds: float = _KEPT_SECONDS) -> None:
    """Remove folders of tunes that began long ago; nothing that aitune did not name, or that is in use."""
    limit = time.time() - keep_seconds
    for entry in builds.iterdir():
        with contextlib.suppress(OSError):
            ours = re.fullmatch(r"\d{8}-\d{6}-\w+", entry.name) and entry.is_dir() and not entry.is_symlink()
            if ours and entry.stat().st_mtime < limit and not _in_use(entry):
                shutil.rmtree(entry, ignore_errors=True)


def remove_files(folder: str) -> None:
    """Remove the files of a build, if they are still there."""
    if os.path.isdir(folder):  # noqa: PTH112 - called while the interpreter ends, when pathlib may be gone
        shutil.rmtree(folder, ignore_errors=True)
