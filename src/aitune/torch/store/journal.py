"""What a tune has found so far, kept until it ends; and what a finished one chose (decision 22)."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aitune.exceptions import DocumentError
from aitune.torch.fields import Fields, parse
from aitune.torch.measure import PairedTiming
from aitune.torch.store.evidence import read_timing, read_trial, timing_record, trial_record
from aitune.torch.store.files import write_text
from aitune.torch.store.key import is_key
from aitune.torch.trial import Trial, Verdict

__all__ = ["Choice", "Finding", "Journal", "read_choice", "write_choice"]

FORMAT = 1
_LARGEST = 64 << 20
_KEPT_SECONDS = 7 * 24 * 3600.0
_NOT_FOUND_OUT = (Verdict.skipped, Verdict.not_installed)


@dataclass(frozen=True)
class Finding:
    """One finished trial.

    Attributes:
        key: Text of the candidate's entry key.
        trial: The trial.
        timing: Figures against the original, None where it was not measured.
    """

    key: str
    trial: Trial
    timing: PairedTiming | None = None


@dataclass(frozen=True)
class Choice:
    """What a finished tune chose.

    Attributes:
        backend: Description of the backend; ``aitune.torch.trial.ORIGINAL`` where the graph was left alone.
        key: Text of its entry key, None for the original.
        batch_size: Batch size at which was measured; with it the graph's range needs no search. None without one.
        findings: Every trial.
        created: When, seconds since the epoch.
    """

    backend: str
    key: str | None
    batch_size: int | None
    findings: tuple[Finding, ...] = ()
    created: float = field(default_factory=time.time)


class Journal:
    """Findings of one tune, in a file to which each is added as soon as it is known.

    Two processes may write to one journal: each line is written at once, and both gain. What cannot be read is as if it
    had never been written, such as the last line of a process that was killed.

    Args:
        file: The file; None keeps nothing.
        lost: Takes what went wrong when a line could not be written; nothing is written after that.
    """

    def __init__(self, file: Path | None, lost: Any = None) -> None:
        self._file = file
        self._lost = lost
        self._findings: dict[str, Finding] = {}
        self.batch_size: int | None = None
        self._begun = False
        if file is not None:
            self._read(file)

    @property
    def found(self) -> bool:
        """Whether there is anything to go on from."""
        return self._begun

    def begin(self, batch_size: int | None) -> None:
        """Say at which batch size will be measured; a tune that goes on from here has to take the same."""
        if not self._begun:
            self.batch_size = batch_size
            self._begun = True
            self._append({"format": FORMAT, "batch_size": batch_size})

    def find(self, key: str) -> Finding | None:
        """Return what is known of the candidate with an entry key."""
        return self._findings.get(key)

    def add(self, finding: Finding) -> None:
        """Add a finished trial; one that was not tried, or lacked a library, is left out."""
        if finding.trial.verdict in _NOT_FOUND_OUT:
            return
        self._findings[finding.key] = finding
        self._append({"key": finding.key, **_finding_record(finding)})

    def _append(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        # A line that a full disk or a power cut tore must not take this one with it.
        line = f"\n{json.dumps(record, allow_nan=False)}\n".encode()
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return  # another process cleared the store
        except OSError as error:
            self._file = None
            if self._lost is not None:
                self._lost(error)

    def _read(self, file: Path) -> None:
        for record in _lines(file):
            with contextlib.suppress(DocumentError):
                if "format" in record:
                    if record.integer("format") != FORMAT:
                        return
                    self.batch_size = record.optional("batch_size", record.integer)
                    self._begun = True
                elif self._begun:
                    finding = _read_finding(record)
                    self._findings[finding.key] = finding


def _lines(file: Path) -> Iterator[Fields]:
    try:
        facts = file.stat()
        if facts.st_size > _LARGEST or facts.st_mtime < time.time() - _KEPT_SECONDS:
            return
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(DocumentError):
            yield parse(line, str(file))


def read_choice(file: Path) -> Choice | None:
    """Read what a tune chose, None where nothing is kept or it cannot be read."""
    try:
        if file.stat().st_size > _LARGEST:
            return None
        record = parse(file.read_bytes(), str(file))
        if record.integer("format") != FORMAT:
            return None
        return Choice(
            backend=record.text("backend"),
            key=record.optional("key", lambda name: _read_key(record, name)),
            batch_size=record.optional("batch_size", record.integer),
            findings=tuple(_read_finding(item) for item in record.objects("findings")),
            created=record.number("created"),
        )
    except (OSError, DocumentError):
        return None


def write_choice(file: Path, choice: Choice) -> None:
    """Write what a tune chose.

    Raises:
        OSError: If it cannot be written.
    """
    document = {
        "format": FORMAT,
        "backend": choice.backend,
        "key": choice.key,
        "batch_size": choice.batch_size,
        "findings": [{"key": finding.key, **_finding_record(finding)} for finding in choice.findings],
        "created": choice.created,
    }
    write_text(file, json.dumps(document, indent=1, allow_nan=False))


def _finding_record(finding: Finding) -> dict[str, Any]:
    return {"trial": trial_record(finding.trial), "timing": timing_record(finding.timing)}


def _read_finding(record: Fields) -> Finding:
    timing = record.optional("timing", lambda name: read_timing(record.object(name)))
    return Finding(_read_key(record, "key"), read_trial(record.object("trial")), timing)


def _read_key(record: Fields, name: str) -> str:
    key = record.text(name)
    if not is_key(key):
        raise record.error(name, "is no key")
    return key
