"""Unpacked checkpoints: kept in the cache under the digest of their manifest, and used again once verified."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import uuid
import weakref
from dataclasses import dataclass
from pathlib import Path

from aitune.exceptions import CheckpointDamagedError
from aitune.torch.checkpoint.archive import extract
from aitune.torch.checkpoint.manifest import Manifest
from aitune.torch.store.files import damage

__all__ = ["Unpacked", "unpack"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Unpacked:
    """The files of a checkpoint on disk.

    Attributes:
        folder: Where they are.
        temporary: Whether they go with this object, for want of a cache.
    """

    folder: Path
    temporary: bool = False


def unpack(file: Path, manifest: Manifest, cache_dir: Path) -> Unpacked:
    """Return the files of a checkpoint, verified against its manifest; unpack them where that was not done before.

    Args:
        file: The checkpoint.
        manifest: Its manifest.
        cache_dir: Root of everything that aitune writes; where it does not work, a temporary folder serves.

    Raises:
        CheckpointDamagedError: If a file has another content than the manifest says; nothing is left behind.
        CheckpointError: If there is no room.
        OSError: If the checkpoint cannot be read, or nothing can be written anywhere.
    """
    name = hashlib.blake2b(manifest.source, digest_size=20).hexdigest()
    root = cache_dir / "checkpoints"
    problem = _unusable(root)
    target = root / name
    if problem is None and not target.is_dir():
        problem = _too_small(root, manifest.size)
    if problem is not None:
        _log.warning("unpacking %s to a temporary folder: %s", file.name, problem)
        folder = Path(tempfile.mkdtemp(prefix="aitune-checkpoint-"))
        unpacked = Unpacked(folder, temporary=True)
        weakref.finalize(unpacked, shutil.rmtree, str(folder), ignore_errors=True)
        _fill(file, manifest, folder)
        return unpacked
    if target.is_dir():
        found = damage(target, manifest.files)
        if found is None:
            return Unpacked(target)
        _log.info("an unpacked checkpoint is damaged, and unpacked again: %s: %s", target, found)
        _remove(target)
    incoming = root / f".{name}.{uuid.uuid4().hex}"
    incoming.mkdir(mode=0o700)
    try:
        _fill(file, manifest, incoming)
        with contextlib.suppress(OSError):  # another process was quicker
            incoming.rename(target)
            return Unpacked(target)
        if damage(target, manifest.files) is None:
            return Unpacked(target)
        raise OSError(f"{target} cannot be written")
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _fill(file: Path, manifest: Manifest, folder: Path) -> None:
    extract(file, manifest, folder)
    problem = damage(folder, manifest.files)
    if problem is not None:
        raise CheckpointDamagedError(str(file), f"is damaged, {problem}; copy it again, or save it anew")


def _remove(folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _too_small(root: Path, size: int) -> str | None:
    """Return that there is no room for so many bytes, where the disk of temporary files has it; None otherwise."""
    if shutil.disk_usage(root).free > size or shutil.disk_usage(tempfile.gettempdir()).free <= size:
        return None
    return f"{root} has no room for {size} bytes"


def _unusable(root: Path) -> str | None:
    """Make the folder; return why it cannot be used, None if it can and is its owner's alone."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        facts = root.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            return f"{root} is no folder"
        if hasattr(os, "geteuid") and (facts.st_uid != os.geteuid() or facts.st_mode & 0o022):
            return f"{root} belongs to, or can be written by, others"
        probe = root / f".{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"{root} cannot be written: {error.strerror or error}"
    return None
