"""Files of an engine: listed with size and digest, written to stay, and held against the list before they are used."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aitune.torch.fields import Fields
from aitune.torch.store.digest import file_digest

__all__ = ["KeptFile", "checked_files", "copy_in", "damage", "is_safe_path", "sync", "write_text"]

_MOST_FILES = 10_000
_LONGEST_PATH = 400


@dataclass(frozen=True)
class KeptFile:
    """One file of an engine.

    Attributes:
        path: Where it is within the engine's folder, parts separated by ``/``.
        size: Its bytes.
        digest: Digest of its content.
    """

    path: str
    size: int
    digest: str

    def record(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"path": self.path, "size": self.size, "digest": self.digest}


def is_safe_path(path: str) -> bool:
    """Whether a path stays within the folder that it is put behind, on any system."""
    parts = path.split("/")
    return (
        0 < len(path) <= _LONGEST_PATH
        and not any(letter in path for letter in '\\:*?"<>|\0')
        and path.isprintable()
        and all(part not in ("", ".", "..") and not part.endswith((" ", ".")) for part in parts)
    )


def checked_files(record: Fields, name: str) -> tuple[KeptFile, ...]:
    """Read a list of files from a manifest.

    Raises:
        DocumentError: If a path leaves the folder or occurs twice (also in other letters), or a field is wrong.
    """
    files = []
    seen: set[str] = set()
    for item in record.objects(name, _MOST_FILES):
        path = item.text("path")
        if not is_safe_path(path):
            raise item.error("path", f"is no path within the folder: {path[:80]!r}")
        if path.casefold() in seen:
            raise item.error("path", f"occurs twice: {path!r}")
        seen.add(path.casefold())
        files.append(KeptFile(path, item.integer("size"), item.text("digest", longest=200)))
    return tuple(files)


def copy_in(source: Path, target: Path) -> tuple[KeptFile, ...]:
    """Copy a folder of engine files so that they stay, and list them.

    Args:
        source: The folder; everything in it must be a plain file or a folder.
        target: Where to; made.

    Raises:
        OSError: If something cannot be read or written, or is neither file nor folder.
        ValueError: If a name cannot be kept.
    """
    files = []
    target.mkdir(parents=True)
    for found in sorted(source.rglob("*")):
        relative = str(PurePosixPath(*found.relative_to(source).parts))
        kind = found.lstat().st_mode
        if not is_safe_path(relative):
            raise ValueError(f"an engine file has a name that cannot be kept: {relative!r}")
        if stat.S_ISDIR(kind):
            (target / relative).mkdir()
        elif stat.S_ISREG(kind):
            shutil.copyfile(found, target / relative)
            sync(target / relative)
            size = (target / relative).stat().st_size
            files.append(KeptFile(relative, size, file_digest(target / relative)))
        else:
            raise OSError(f"{found} is neither a file nor a folder")
    return tuple(files)


def damage(folder: Path, files: Sequence[KeptFile]) -> str | None:
    """Return how files differ from their list, None if they do not. Links and other people's files are damage."""
    for file in files:
        path = folder / file.path
        try:
            for place in (path, *path.parents):
                if place == folder.parent:
                    break
                problem = _foreign(place, is_file=place == path)
                if problem is not None:
                    return f"{file.path}: {problem}"
            if path.stat().st_size != file.size:
                return f"{file.path} has {path.stat().st_size} bytes, not {file.size}"
            if file_digest(path, file.size) != file.digest:
                return f"{file.path} has another content than was written"
        except OSError as error:
            return f"{file.path} cannot be read: {error.strerror or error}"
    return None


def _foreign(place: Path, *, is_file: bool) -> str | None:
    facts = place.lstat()
    if not (stat.S_ISREG(facts.st_mode) if is_file else stat.S_ISDIR(facts.st_mode)):
        return "is a link, or something else that is no plain file"
    if hasattr(os, "geteuid") and facts.st_uid != os.geteuid():
        return "belongs to somebody else"
    return None


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old or the new one, whole, and a power cut leaves one of them.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
