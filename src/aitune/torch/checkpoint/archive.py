"""The archive: one zip file that appears whole or not at all, and that is read as if it came from an enemy."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import struct
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from aitune.exceptions import CheckpointDamagedError, CheckpointError, DocumentError
from aitune.torch.checkpoint.manifest import Manifest
from aitune.torch.checkpoint.storage import LocalTorchStorage
from aitune.torch.store.files import sync

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment, unused-ignore]

__all__ = ["MANIFEST", "check_sums", "extract", "read_manifest", "remove_archive", "write_archive"]

MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 256 << 20
_LARGEST_SUMS = 1 << 20
_BLOCK = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)
_READS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What the zip reader raises for bytes that are no archive; fuzzing found no others.
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, KeyError, IndexError, MemoryError,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- writing


def write_archive(file: Path, manifest: str, folder: Path, storage: LocalTorchStorage) -> None:
    """Write a checkpoint and, beside it, its digest. A kill at any moment leaves the old pair or the new.

    Args:
        file: Where to. What is there and is no checkpoint is not replaced.
        manifest: The manifest.
        folder: Everything in it goes into the archive.
        storage: Compression, digest, and whether an older checkpoint may be replaced.

    Raises:
        CheckpointError: If there is something that may not be replaced.
        OSError: If it cannot be written.
    """
    target = Path(os.path.realpath(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent):
        _replace(target, manifest, folder, storage)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only one who saves into a folder: of two at once, the file of one would stay with the digest of the other.

    Where there are no locks on folders (Windows, some network file systems) it goes on without.
    """
    descriptor = None
    with contextlib.suppress(OSError):
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _replace(target: Path, manifest: str, folder: Path, storage: LocalTorchStorage) -> None:
    old = _old_digest(target, storage)
    temporary = target.with_name(f".{target.name[:60]}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            _write_zip(stream, manifest, folder, compress=storage.compress_checkpoint)
            stream.flush()
            os.fsync(stream.fileno())
        new = _digest(temporary, storage)
        sums = storage.sums(target)
        # For the moment in between both are right; a name that is too long for it shows before anything is replaced.
        _write_sums(sums, [(new, target.name), *([(old, target.name)] if old is not None else [])])
        temporary.replace(target)
        sync(target.parent)
        _write_sums(sums, [(new, target.name)])
    finally:
        temporary.unlink(missing_ok=True)


def _old_digest(target: Path, storage: LocalTorchStorage) -> str | None:
    try:
        kind = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(kind):
        raise CheckpointError(str(target), "is no file, and is not replaced; give another path")
    try:
        read_manifest(target)
    except CheckpointError as error:
        if not _is_ours(target):
            raise CheckpointError(
                str(target), "is no checkpoint of aitune, and is not replaced; remove it, or give another path"
            ) from error
    if not storage.overwrite_checkpoint_on_tune:
        raise CheckpointError(
            str(target), "is there already; LocalTorchStorage(overwrite_checkpoint_on_tune=True) replaces it"
        )
    return _digest(target, storage)


def _is_ours(target: Path) -> bool:
    """Whether a file that cannot be used is a checkpoint all the same: of another version, or damaged."""
    with contextlib.suppress(OSError, *_BROKEN), zipfile.ZipFile(target) as archive, archive.open(MANIFEST) as stream:
        return b'"aitune checkpoint"' in stream.read(200)
    return False


def _write_zip(stream: IO[bytes], manifest: str, folder: Path, *, compress: bool) -> None:
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", method) as archive:
        _add(archive, MANIFEST, manifest.encode(), method)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _DATE)
            info.external_attr = 0o644 << 16
            info.compress_type = method
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as part:
                shutil.copyfileobj(source, part, _BLOCK)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, method: int) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    archive.writestr(info, data, method)


def _digest(path: Path, storage: LocalTorchStorage) -> str:
    digest = hashlib.new(f"sha{storage.sha_type}")
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _write_sums(path: Path, lines: list[tuple[str, str]]) -> None:
    """Write digests beside those of other files in the list, as ``net.v1`` and ``net.v2`` have one list."""
    if path.exists() and not _are_sums(path):
        raise CheckpointError(str(path), "is no list of digests, and is not replaced; give the checkpoint another path")
    temporary = path.with_name(f".{path.name[:60]}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            stream.write("".join(f"{digest}  {name}\n" for digest, name in (*_other_sums(path, lines), *lines)))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _other_sums(path: Path, lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the lines of a list that are about other files, which are still there."""
    names = {name for _, name in lines}
    with contextlib.suppress(FileNotFoundError):
        return [
            (digest, name)
            for digest, name in _sums(path)
            if name not in names and path.with_name(name).is_file() and Path(name).name == name
        ]
    return []


def _sums(path: Path) -> list[tuple[str, str]]:
    """Read a list of digests: each with the name of its file.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        lines = stream.read(_LARGEST_SUMS).decode("utf-8", "surrogateescape").split("\n")
    parts = [line.rstrip("\r").split(maxsplit=1) for line in lines]
    return [(part[0], part[1].lstrip("*")) for part in parts if len(part) == 2]


def remove_archive(file: Path, storage: LocalTorchStorage) -> None:
    """Remove a checkpoint and its digest; those of other files in the list stay.

    Raises:
        OSError: If it cannot be removed.
    """
    with _alone(file.parent):
        file.unlink()
        sums = storage.sums(file)
        others = _other_sums(sums, [("", file.name)])
        if others:
            _write_sums(sums, others)
        else:
            sums.unlink(missing_ok=True)


def _are_sums(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _LARGEST_SUMS:
        return False
    lines = path.read_bytes().splitlines()
    return all(re.fullmatch(rb"[0-9a-f]{56,128} [ *].+", line) for line in lines)


# ------------------------------------------------------------------------------------------------- reading


def check_sums(file: Path, storage: LocalTorchStorage) -> None:
    """Hold a checkpoint against the digest beside it, where there is one.

    Raises:
        CheckpointDamagedError: If it has another.
        OSError: If it cannot be read.
    """
    sums = storage.sums(file)
    try:
        known = [digest for digest, name in _sums(sums) if name == file.name]
    except FileNotFoundError:
        return
    if known and _digest(file, storage) not in known:
        raise CheckpointDamagedError(
            str(file), f"has another digest than {sums.name} says; copy both again, or save the checkpoint anew"
        )


def read_manifest(file: Path) -> Manifest:
    """Read the manifest of a checkpoint, and hold the names in the archive against it. Nothing is written.

    Raises:
        CheckpointDamagedError: If it is no checkpoint, a damaged one, or one of another version.
        OSError: If it cannot be read.
    """
    with _opened(file) as archive:
        infos = _checked_names(file, archive)
        if infos[MANIFEST].file_size > _LARGEST_MANIFEST:
            raise CheckpointDamagedError(str(file), "its manifest is too large")
        with archive.open(infos[MANIFEST]) as stream:
            text = stream.read(_LARGEST_MANIFEST + 1)
        try:
            manifest = Manifest.read(text, MANIFEST)
        except DocumentError as error:
            raise CheckpointDamagedError(str(file), f"cannot be used: {error}") from error
        listed = {entry.path: entry.size for entry in manifest.files}
        held = {name: info.file_size for name, info in infos.items() if name != MANIFEST}
        if listed != held:
            odd = sorted(name[:100] for name in {*listed, *held} if listed.get(name) != held.get(name))
            raise CheckpointDamagedError(
                str(file), f"holds something else than its manifest says: {', '.join(odd[:3])}"
            )
        return manifest


def extract(file: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack the files that a manifest lists; their digests are for the caller to check.

    Args:
        file: The checkpoint.
        manifest: Its manifest, as :func:`read_manifest` returned it: its paths stay within the folder.
        folder: An empty folder.

    Raises:
        CheckpointDamagedError: If the archive is damaged, or holds more than it says.
        CheckpointError: If there is no room.
        OSError: If something cannot be read or written.
    """
    free = shutil.disk_usage(folder).free
    if manifest.size > free:
        raise CheckpointError(str(file), f"needs {manifest.size >> 20} MB in {folder}, where {free >> 20} MB are free")
    with _opened(file) as archive:
        for entry in manifest.files:
            target = folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry.path) as source, target.open("xb") as part:
                _copy(file, source, part, entry.size)


def _copy(file: Path, source: IO[bytes], part: IO[bytes], size: int) -> None:
    left = size
    while block := source.read(min(_BLOCK, left + 1)):
        left -= len(block)
        if left < 0:
            raise CheckpointDamagedError(str(file), "holds a file that is larger than it says")
        part.write(block)
    if left:
        raise CheckpointDamagedError(str(file), "holds a file that is shorter than it says")


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    if file.exists() and not file.is_file():
        raise CheckpointError(str(file), "is no file; give the path of a checkpoint that ait.save wrote")
    if not file.is_file():
        raise CheckpointError(str(file), "is not there; ait.save(model, path) writes one")
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except CheckpointError:
        raise
    except (*_BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that is a place that no file has
            raise
        raise CheckpointDamagedError(
            str(file), f"is no archive that can be read ({str(error)[:100] or type(error).__name__}); save it anew"
        ) from error


def _checked_names(file: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or info.is_dir():
            raise CheckpointDamagedError(str(file), f"holds something else than files: {info.filename[:100]!r}")
        if info.compress_type not in _READS or info.flag_bits & 1:
            raise CheckpointDamagedError(str(file), f"packs {info.filename[:100]!r} in a way that is not used here")
        if info.filename in infos:
            raise CheckpointDamagedError(str(file), f"holds {info.filename[:100]!r} twice")
        infos[info.filename] = info
    if MANIFEST not in infos:
        raise CheckpointDamagedError(str(file), "is an archive, but no checkpoint of aitune: it has no manifest.json")
    return infos
