"""The folder of the store: made for its owner alone, refused where somebody else could have put something there."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from aitune.torch.store.files import sync
from aitune.torch.store.key import is_key

__all__ = ["StoreFolder"]

_VERSION = "v1"
_ENTRIES, _LOCKS, _TUNES, _INCOMING, _TRASH = "entries", "locks", "tunes", "incoming", "trash"


class StoreFolder:
    """Where everything of a store is.

    Args:
        root: The store's folder, such as ``<cache_dir>/store``. What is in it beside ours is never touched.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = root / _VERSION

    def make(self) -> None:
        """Make the folder and what belongs in it.

        Raises:
            OSError: If it cannot be written.
        """
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.root, self.place, *(self.place / name for name in (_ENTRIES, _LOCKS, _TUNES))):
            folder.mkdir(mode=0o700, exist_ok=True)

    def foreign(self) -> str | None:
        """Return why what is in the folder cannot be trusted, None if only its owner could have written it."""
        for folder in (self.root, self.place):
            try:
                facts = folder.lstat()
            except FileNotFoundError:
                return None
            except OSError as error:
                return f"{folder} cannot be looked at: {error.strerror or error}"
            problem = _kind_problem(folder, facts.st_mode) or _owner_problem(folder, facts)
            if problem is not None:
                return problem
        return None

    def entry(self, key: str) -> Path:
        """Return where the entry of a key is, or would be."""
        return self.place / _ENTRIES / key[:2] / key

    def lock(self, key: str) -> Path:
        """Return the lock file of a key."""
        return self.place / _LOCKS / f"{key}.lock"

    def journal(self, key: str) -> Path:
        """Return the journal of an unfinished tune."""
        return self.place / _TUNES / f"{key}.journal"

    def choice(self, key: str) -> Path:
        """Return the record of what a finished tune chose."""
        return self.place / _TUNES / f"{key}.choice.json"

    def entries(self) -> Iterator[Path]:
        """Yield the folders of all entries."""
        yield from (folder for folder in sorted((self.place / _ENTRIES).glob("??/*")) if is_key(folder.name))

    def leftovers(self) -> Iterator[Path]:
        """Yield what was left by processes that ended while they wrote or removed."""
        for name in (_INCOMING, _TRASH):
            yield from sorted((self.place / name).glob("*"))

    def locks(self) -> Iterator[Path]:
        """Yield all lock files."""
        yield from sorted((self.place / _LOCKS).glob("*.lock"))

    def tunes(self) -> Iterator[Path]:
        """Yield all journals and choices."""
        yield from sorted((self.place / _TUNES).glob("*"))

    def incoming(self) -> Path:
        """Make a folder in which an entry is put together, on the file system of the entries.

        Raises:
            OSError: If it cannot be made.
        """
        folder = self.place / _INCOMING / uuid.uuid4().hex
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def publish(self, folder: Path, key: str) -> Path:
        """Give a finished folder its name; an older entry of the key is removed.

        Raises:
            OSError: If it cannot be done.
        """
        target = self.entry(key)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        for _ in range(5):
            try:
                folder.rename(target)  # over an empty folder or none; another process may have been quicker
            except OSError:
                if not target.exists():
                    raise
                self.remove(target)
                continue
            sync(target.parent)
            return target
        raise OSError(f"{target} is published by others again and again")

    def remove(self, folder: Path) -> None:
        """Remove an entry: it is gone at once, its files soon.

        Raises:
            OSError: If it cannot be removed.
        """
        trash = self.place / _TRASH / uuid.uuid4().hex
        trash.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.rename(trash)
        except FileNotFoundError:
            return  # another process was quicker
        if trash.is_dir() and not trash.is_symlink():
            shutil.rmtree(trash, ignore_errors=True)
        else:
            trash.unlink(missing_ok=True)


def _kind_problem(folder: Path, mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return f"{folder} is a link; set AITUNE_CACHE_DIR, or config.cache_dir, to where it leads"
    if not stat.S_ISDIR(mode):
        return f"{folder} is no folder; remove it, or set AITUNE_CACHE_DIR to a folder"
    return None


def _owner_problem(folder: Path, facts: os.stat_result) -> str | None:
    if not hasattr(os, "geteuid"):
        return None
    if facts.st_uid != os.geteuid():
        return f"{folder} belongs to another user (uid {facts.st_uid}); set AITUNE_CACHE_DIR to a folder of your own"
    if facts.st_mode & 0o022:
        return f"{folder} can be written by others; remove it, or look into it and then: chmod 700 {folder}"
    return None
