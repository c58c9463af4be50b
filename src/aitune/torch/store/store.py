"""The store as a tune uses it: looked up, published to, and done without where it does not work."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aitune.exceptions import DocumentError
from aitune.torch.config import Config
from aitune.torch.measure import PairedTiming
from aitune.torch.store.entry import ENGINE, MANIFEST, Entry
from aitune.torch.store.evidence import KEPT
from aitune.torch.store.files import copy_in, sync
from aitune.torch.store.folder import StoreFolder
from aitune.torch.store.journal import Choice, Journal, read_choice, write_choice
from aitune.torch.store.key import Key
from aitune.torch.store.upkeep import evict
from aitune.torch.trial import Trial, Verdict

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Store", "Turn"]

_log = logging.getLogger(__name__)


class Turn(enum.Enum):
    """How :meth:`Store.building` let the caller in."""

    mine = "mine"
    """Nobody else is building: look up again only if that was long ago."""
    after_another = "after_another"
    """Another process was building and is done: look up again, it is most likely there."""
    without = "without"
    """Another process is still building after all that time, or there are no locks here: build all the same."""


class Store:
    """Engines and verdicts by their keys. Any number of processes and threads may use one folder.

    No method raises for what is wrong with the folder or what is in it: a full, read-only or odd file system, a damaged
    entry, a folder of somebody else. Reading is then a miss and writing does nothing, after one line in the log.

    Args:
        root: The store's folder.
        reuse: Whether what is there is used; without, only what is new is added.
        size_limit: Bytes of engine files; those that were used longest ago go first. None for no limit.
        min_free: Bytes that should stay free on the file system; fewer are warned about.
    """

    def __init__(
        self, root: Path, *, reuse: bool = True, size_limit: int | None = None, min_free: int | None = None
    ) -> None:
        self._folder = StoreFolder(root)
        self._reuse = reuse
        self._size_limit = size_limit
        self._min_free = min_free
        self._readable = True
        self._writable = True
        self._ready = False

    @classmethod
    def configured(cls, config: Config, cache_dir: Path | None = None) -> Store:
        """Return the store that the configuration asks for; nothing is made before it is needed.

        Args:
            config: The configuration.
            cache_dir: In place of its own.
        """
        return cls(
            (cache_dir or config.cache_dir) / "store",
            reuse=config.reuse_store,
            size_limit=config.store_size_limit,
            min_free=config.cache_min_free_bytes,
        )

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self._folder.root

    def lookup(self, key: Key, seconds: float | None = None) -> Entry | None:
        """Return what is kept under a key, its engine files found as they were written. Marks it as used.

        Args:
            key: The key.
            seconds: Time limit that a build would have now, None for no limit: a candidate that timed out under a
                smaller one is a miss.
        """
        if not self._reuse or not self._can_read():
            return None
        folder = self._folder.entry(key.text)
        try:
            entry = Entry.read(folder)
            problem = entry.damage() if entry.key == key.text else "it is another's entry"
        except FileNotFoundError:
            return None
        except (DocumentError, NotADirectoryError, IsADirectoryError) as error:
            entry, problem = None, str(error)
        except OSError as error:
            self._stop_reading(error)
            return None
        if entry is None or problem is not None:
            _log.info("a damaged entry of the store is not used, and removed: %s: %s", folder, problem)
            self._remove(folder)
            return None
        if _may_do_better(entry, seconds):
            return None
        with contextlib.suppress(OSError):  # a read-only store keeps its order
            os.utime(folder / MANIFEST)
        return entry

    def publish(
        self,
        key: Key,
        trial: Trial,
        folder: Path | None = None,
        *,
        timing: PairedTiming | None = None,
        limit_seconds: float | None = None,
    ) -> Entry | None:
        """Keep a verdict, and the engine that it is about.

        Args:
            key: The key.
            trial: The verdict with its evidence.
            folder: What ``Engine.save`` wrote; None for a verdict alone, or an engine that cannot be kept.
            timing: Figures against the original.
            limit_seconds: The time limit that a candidate exceeded which timed out.

        Returns:
            The entry; None where nothing was kept: the verdict is of the moment (decision 22), an accepted candidate
            has no files, or the store does not work.
        """
        accepted = trial.verdict is Verdict.accepted
        if trial.verdict not in KEPT or (accepted and folder is None) or not self._can_write():
            return None
        incoming: Path | None = None
        try:
            incoming = self._folder.incoming()
            files = copy_in(folder, incoming / ENGINE) if folder is not None and accepted else ()
            entry = Entry.of(key, trial, timing=timing, limit_seconds=limit_seconds, files=files)
            (incoming / MANIFEST).write_text(entry.record(), encoding="utf-8")
            sync(incoming / MANIFEST)
            for place in (*(path for path in incoming.rglob("*") if path.is_dir()), incoming):
                sync(place)
            published = self._folder.publish(incoming, key.text)
            incoming = None
        except (OSError, ValueError) as error:
            self._stop_writing(error)
            return None
        finally:
            if incoming is not None:
                shutil.rmtree(incoming, ignore_errors=True)
        self._keep_within_limits(published)
        with contextlib.suppress(OSError, DocumentError):
            return Entry.read(published)
        return None

    @contextlib.contextmanager
    def building(self, key: Key, wait_seconds: float) -> Iterator[Turn]:
        """Be the only one who builds under a key, among all processes and threads that use the folder.

        A process that ends, in whatever way, lets go. Not to be nested for several keys.

        Args:
            key: The key.
            wait_seconds: How long to wait for another process that is building.
        """
        lock, turn = self._locked(key, wait_seconds) if self._can_write() else (None, Turn.without)
        try:
            yield turn
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):
                    lock.release()

    def reject(self, entry: Entry, reason: str) -> None:
        """Remove an entry whose engine could not be loaded, or was wrong on a sample."""
        _log.warning("an entry of the store is removed: %s: %s", entry.trial.backend, reason)
        self._remove(self._folder.entry(entry.key))

    @property
    def has_choices(self) -> bool:
        """Whether a tune has left something to go on from, so that a worker may not be needed."""
        return self._reuse and self._can_read() and any(True for _ in self._folder.tunes())

    def journal(self, key: Key) -> Journal:
        """Return the journal of a tune, with what an unfinished one left."""
        file = self._folder.journal(key.text)
        if not self._reuse and self._can_write():
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        return Journal(file if self._can_read() and self._can_write() else None, self._stop_writing)

    def choice(self, key: Key) -> Choice | None:
        """Return what a finished tune chose, None where none is kept."""
        return read_choice(self._folder.choice(key.text)) if self._reuse and self._can_read() else None

    def finish(self, key: Key, choice: Choice) -> None:
        """Keep what a tune chose, and give up its journal."""
        if not self._can_write():
            return
        try:
            write_choice(self._folder.choice(key.text), choice)
            self._folder.journal(key.text).unlink(missing_ok=True)
        except OSError as error:
            self._stop_writing(error)

    def forget(self, key: Key) -> None:
        """Remove what a tune chose, and its journal."""
        for file in (self._folder.choice(key.text), self._folder.journal(key.text)):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _can_read(self) -> bool:
        if self._readable and not self._ready:
            foreign = self._folder.foreign()
            if foreign is not None:
                self._readable = self._writable = False
                _log.warning("going on without the store: %s", foreign)
            self._ready = True
        return self._readable

    def _can_write(self) -> bool:
        if not self._can_read() or not self._writable:
            return False
        try:
            self._folder.make()
        except OSError as error:
            self._stop_writing(error)
        return self._writable

    def _stop_writing(self, error: Exception) -> None:
        if self._writable:
            self._writable = False
            _log.warning("nothing more is kept in the store: %s: %s", self.root, error)

    def _stop_reading(self, error: Exception) -> None:
        if self._readable:
            self._readable = self._writable = False
            _log.warning("going on without the store: %s: %s", self.root, error)

    def _locked(self, key: Key, wait_seconds: float) -> tuple[BaseFileLock | None, Turn]:
        import filelock

        lock = filelock.FileLock(self._folder.lock(key.text))
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            _log.info("another process is building %s; waiting for it, %g s at most", key.label, wait_seconds)
        except (OSError, NotImplementedError) as error:  # file systems without locks
            _log.info("no lock in the store (%s); building without", error)
            return None, Turn.without
        else:
            return lock, Turn.mine
        try:
            lock.acquire(timeout=max(0.0, wait_seconds))
        except (filelock.Timeout, OSError, NotImplementedError):
            return None, Turn.without
        return lock, Turn.after_another

    def _remove(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # a read-only store: it is found again, and not used again
            self._folder.remove(folder)

    def _keep_within_limits(self, published: Path) -> None:
        try:
            if self._size_limit is not None:
                evict(self._folder, self._size_limit, keep=published)
            free = shutil.disk_usage(self.root).free
        except OSError:
            return
        if self._min_free is not None and free < self._min_free:
            _log.warning(
                "%s has %d MB left, less than AITUNE_CACHE_MIN_FREE_BYTES; aitune.torch.store.prune makes room",
                self.root,
                free >> 20,
            )
            self._min_free = None  # said once


def _may_do_better(entry: Entry, seconds: float | None) -> bool:
    """Whether a candidate that timed out would have more time now."""
    if entry.trial.verdict is not Verdict.timed_out or entry.limit_seconds is None:
        return False
    return seconds is None or seconds > entry.limit_seconds
