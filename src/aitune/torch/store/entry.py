"""An entry of the store: a manifest, and the files of an engine where there is one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aitune.exceptions import DocumentError
from aitune.torch.fields import Fields, parse
from aitune.torch.measure import PairedTiming
from aitune.torch.store.evidence import read_timing, read_trial, timing_record, trial_record
from aitune.torch.store.files import KeptFile, checked_files, damage
from aitune.torch.store.key import Key, is_key
from aitune.torch.trial import Trial

__all__ = ["ENGINE", "MANIFEST", "Entry"]

MANIFEST = "manifest.json"
ENGINE = "engine"
FORMAT = 1
_LARGEST_MANIFEST = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept of one candidate.

    Attributes:
        key: The key's text.
        parts: Digest by what it is of.
        facts: The surroundings in words.
        trial: The verdict with its evidence.
        timing: Figures against the original, None where it was not measured.
        limit_seconds: The time limit under which a candidate timed out, None for any other verdict.
        created: When it was made, seconds since the epoch.
        files: The engine's files, empty for a verdict alone.
        folder: Where the entry is; None before it is published.
    """

    key: str
    parts: Mapping[str, str]
    facts: Mapping[str, str]
    trial: Trial
    timing: PairedTiming | None = None
    limit_seconds: float | None = None
    created: float = field(default_factory=time.time)
    files: tuple[KeptFile, ...] = ()
    folder: Path | None = None

    @classmethod
    def of(
        cls,
        key: Key,
        trial: Trial,
        *,
        timing: PairedTiming | None = None,
        limit_seconds: float | None = None,
        files: Sequence[KeptFile] = (),
    ) -> Entry:
        """Make an entry that is yet to be published."""
        return cls(
            key=key.text,
            parts=MappingProxyType(dict(key.parts)),
            facts=MappingProxyType(dict(key.facts)),
            trial=trial,
            timing=timing,
            limit_seconds=limit_seconds,
            files=tuple(files),
        )

    @property
    def has_engine(self) -> bool:
        """Whether there are files from which the backend's ``load`` makes the engine."""
        return bool(self.files)

    @property
    def size(self) -> int:
        """Bytes of the engine's files."""
        return sum(file.size for file in self.files)

    def bring_to(self, folder: Path) -> Path:
        """Put the engine's files into a folder, as links where the file system has them: they cost nothing.

        The engine has to be loaded from there and not from the store, which may evict the entry at any time.

        Args:
            folder: A folder of the caller's own; made if need be.

        Returns:
            The folder.

        Raises:
            OSError: If a file is gone, or the folder cannot be written.
        """
        assert self.folder is not None
        for file in self.files:
            source, target = self.folder / ENGINE / file.path, folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                os.link(source, target)
                continue
            shutil.copyfile(source, target)
        return folder

    def damage(self) -> str | None:
        """Return what is wrong with the engine's files, None if they are as they were written. Reads all of them."""
        assert self.folder is not None
        return damage(self.folder / ENGINE, self.files) if self.files else None

    def record(self) -> str:
        """Return the manifest."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "key": self.key,
            "parts": dict(self.parts),
            "facts": dict(self.facts),
            "created": self.created,
            "trial": trial_record(self.trial),
            "timing": timing_record(self.timing),
            "limit_seconds": self.limit_seconds,
            "files": [file.record() for file in self.files],
        }
        return json.dumps(document, indent=1, allow_nan=False)

    @classmethod
    def read(cls, folder: Path) -> Entry:
        """Read the manifest of a folder; its files are not looked at.

        Raises:
            DocumentError: If it does not say what a manifest of this version says.
            OSError: If it cannot be read.
        """
        file = folder / MANIFEST
        with file.open("rb") as stream:
            text = stream.read(_LARGEST_MANIFEST + 1)
        if len(text) > _LARGEST_MANIFEST:
            raise DocumentError(str(file), "", f"is larger than {_LARGEST_MANIFEST >> 20} MB")
        record = parse(text, str(file))
        if record.integer("format") != FORMAT:
            raise record.error("format", f"is {record.integer('format')}, this version of aitune reads {FORMAT}")
        return cls(
            key=_key_of(record),
            parts=MappingProxyType(record.words("parts")),
            facts=MappingProxyType(record.words("facts")),
            trial=read_trial(record.object("trial")),
            timing=record.optional("timing", lambda name: read_timing(record.object(name))),
            limit_seconds=record.optional("limit_seconds", record.number),
            created=record.number("created"),
            files=checked_files(record, "files"),
            folder=folder,
        )


def _key_of(record: Fields) -> str:
    """Return the key that the parts give; the one that is written must be the same."""
    key = record.text("key")
    if not is_key(key) or Key(record.words("parts"), {}).text != key:
        raise record.error("key", "is not that of the parts")
    return key
