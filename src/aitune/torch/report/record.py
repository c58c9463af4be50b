"""The tuning record: every result, kept as JSON in a file or a folder of the user's choice."""

from __future__ import annotations

import datetime
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

from aitune.torch.report.document import SCHEMA_VERSION, to_document, to_text
from aitune.torch.report.result import TuneResult
from aitune.torch.report.writing import write_text

__all__ = ["write_record"]

_log = logging.getLogger(__name__)

_LOCK_SECONDS = 10.0


def write_record(result: TuneResult, path: str | os.PathLike[str]) -> Path | None:
    """Add a result to the record.

    A path that ends in ``.json`` is a file that holds every result so far: an object with ``schema_version``
    and the list ``tunes``. It is rewritten as a whole, atomically, by one process at a time. Any other path
    is a folder, made if need be, that gets one new file for each result.

    Args:
        result: What to add.
        path: Where the record is.

    Returns:
        The file that was written; None if it could not be, which is logged as a WARNING and never raised: a
        full disk must not cost a finished tune.
    """
    target = Path(path).expanduser()
    try:
        is_file = target.suffix.lower() == ".json" and not target.is_dir()
        return _add_to_file(result, target) if is_file else _add_to_folder(result, target)
    except (OSError, ValueError, NotImplementedError) as error:  # the last: a file system without locks
        _log.warning("the tuning record %s was not written: %s", target, error)
        return None


def _add_to_folder(result: TuneResult, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    name = f"tuning_data-{now:%Y%m%dT%H%M%S}Z-{uuid.uuid4().hex[:8]}.json"
    return write_text(folder / name, to_text(result))


def _add_to_file(result: TuneResult, file: Path) -> Path:
    import filelock

    file.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(file.with_name(f".{file.name}.lock"), timeout=_LOCK_SECONDS):
        tunes = _tunes(file)
        now = datetime.datetime.now(datetime.timezone.utc)
        tunes.append({"recorded_at": f"{now:%Y-%m-%dT%H:%M:%SZ}", **to_document(result)})
        document = {"schema_version": SCHEMA_VERSION, "tunes": tunes}
        return write_text(file, json.dumps(document, indent=2, allow_nan=False))


def _tunes(file: Path) -> list[Any]:
    """Return what a record holds so far.

    Raises:
        ValueError: If the file holds something else, which must not be overwritten.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if not text.strip():
        return []
    document = json.loads(text)
    tunes = document.get("tunes") if isinstance(document, dict) else None
    if not isinstance(tunes, list):
        raise ValueError("the file holds something else, and is left as it is")
    return tunes
