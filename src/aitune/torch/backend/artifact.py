"""The note beside an engine's files: plain JSON, so that loading an engine runs no Python from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aitune.exceptions import BackendBuildError
from aitune.torch.export.flat import OutputRoutes
from aitune.torch.export.narrowing import WHOLE, Narrowing
from aitune.torch.trial import PRECISIONS, Precision

__all__ = ["Artifact"]

_FILE = "engine.json"
_FORMAT = 2


@dataclass(frozen=True)
class Artifact:
    """Files of an engine in a folder, with what is needed to run them.

    Attributes:
        backend: Name of the backend that wrote them.
        files: Names of the files within the folder.
        routes: Where the outputs of the graph come from.
        precision: What the engine computes in.
        narrowing: The part of the graph that it serves.
        extra: What else the backend has to know: text, numbers, lists.
    """

    backend: str
    files: tuple[str, ...]
    routes: OutputRoutes
    precision: Precision
    narrowing: Narrowing = WHOLE
    extra: Mapping[str, Any] = field(default_factory=dict)

    def copy(self, source: Path, target: Path) -> None:
        """Write the files and this note into another folder.

        Raises:
            OSError: If a file is gone or the folder cannot be written.
        """
        target.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            # Not written in place: an engine that was loaded from there may have the file mapped.
            part = target / f"{name}.part"
            shutil.copyfile(source / name, part)
            part.replace(target / name)
        self.write(target)

    def write(self, folder: Path) -> None:
        """Write this note into the folder of the files."""
        record = {
            "format": _FORMAT,
            "backend": self.backend,
            "files": list(self.files),
            "outputs": [list(source) for source in self.routes.sources],
            "precision": self.precision,
            "ranges": dict(self.narrowing.ranges),
            "notes": list(self.narrowing.notes),
            "extra": dict(self.extra),
        }
        (folder / _FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, backend: str) -> Artifact:
        """Read the note of a folder.

        Raises:
            BackendBuildError: If there is none, or it is not one of this backend and version.
        """
        try:
            record = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            artifact = cls(
                str(record["backend"]),
                tuple(str(name) for name in record["files"]),
                OutputRoutes(tuple((str(kind), int(index)) for kind, index in record["outputs"])),
                cast("Precision", record["precision"]),
                Narrowing(
                    tuple((str(name), (int(low), int(high))) for name, (low, high) in record["ranges"].items()),
                    tuple(str(note) for note in record["notes"]),
                ),
                dict(record["extra"]),
            )
            usable = record["format"] == _FORMAT and artifact.backend == backend and artifact._is_plain()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BackendBuildError(backend, f"the engine's files cannot be used: {error}") from error
        if not usable:
            raise BackendBuildError(backend, "the engine's files are those of another backend or version")
        return artifact

    def _is_plain(self) -> bool:
        """Whether names stay within the folder and words are known ones."""
        names = all(name == Path(name).name and name not in (".", "..") for name in self.files)
        kinds = all(kind in ("computed", "input") and index >= 0 for kind, index in self.routes.sources)
        return names and kinds and self.precision in PRECISIONS
