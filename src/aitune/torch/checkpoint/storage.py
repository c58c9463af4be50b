"""Where checkpoints are kept on this machine, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aitune.exceptions import AITuneUserInputError

__all__ = ["LocalTorchStorage"]

_SHA_TYPES = ("224", "256", "384", "512")


@dataclass(frozen=True)
class LocalTorchStorage:
    """Settings of :func:`~aitune.torch.save` and :func:`~aitune.torch.load`.

    Args:
        base_folder: Where a checkpoint goes whose path names no folder.
        compress_checkpoint: Whether files in the archive are compressed.
        overwrite_checkpoint_on_tune: Whether an earlier checkpoint of the name may be replaced. What is no checkpoint
            of aitune is never replaced.
        remove_checkpoint_after_tune: Whether ``load(..., retune=True)``, which builds the engines anew, removes the
            checkpoint that did not fit.
        sha_type: Which SHA-2 digest is written beside the archive: "224", "256", "384" or "512".

    Raises:
        AITuneUserInputError: If a value cannot be used.
    """

    base_folder: str | os.PathLike[str] = "checkpoints"
    compress_checkpoint: bool = True
    overwrite_checkpoint_on_tune: bool = True
    remove_checkpoint_after_tune: bool = False
    sha_type: str = "256"

    def __post_init__(self) -> None:
        for name in ("compress_checkpoint", "overwrite_checkpoint_on_tune", "remove_checkpoint_after_tune"):
            if not isinstance(getattr(self, name), bool):
                raise self._refuse(name, "True or False")
        if self.sha_type not in _SHA_TYPES:
            raise self._refuse("sha_type", f"one of {', '.join(map(repr, _SHA_TYPES))}")
        if not isinstance(self.base_folder, (str, os.PathLike)) or not str(self.base_folder):
            raise self._refuse("base_folder", "a path")

    def file(self, path: Any) -> Path:
        """Return where the checkpoint of a path is: a path with a folder is used as given.

        Raises:
            AITuneUserInputError: If it is no path of a file.
        """
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise AITuneUserInputError(f"path must be that of a checkpoint such as 'tuned.ait', not {path!r}")
        given = Path(path).expanduser()
        if given.name in ("", ".", "..") or str(path).endswith(("/", os.sep)):
            raise AITuneUserInputError(f"path must name a file, not {str(path)!r}")
        if any(letter in str(path) for letter in "\0\n\r"):
            raise AITuneUserInputError(f"path must be one line of text, not {str(path)!r}")
        return given if given.parent != Path() or str(path).startswith("./") else Path(self.base_folder) / given

    def sums(self, file: Path) -> Path:
        """Return where the digest of a checkpoint is."""
        return file.with_name(f"{file.stem}_sha{self.sha_type}_sums.txt")

    def _refuse(self, name: str, allowed: str) -> AITuneUserInputError:
        return AITuneUserInputError(f"LocalTorchStorage: {name} must be {allowed}, not {getattr(self, name)!r}")
