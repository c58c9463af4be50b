"""Python modules that only this process finds by their name, made known in another one by their files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["ModuleFiles", "files_by_name", "modules_without_files"]


class ModuleFiles(MetaPathFinder):
    """Finds modules by a list of files. To be put at the end of ``sys.meta_path``.

    Args:
        files: File by the module's full name.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)

    def add(self, files: Mapping[str, str]) -> None:
        """Find more."""
        self._files.update(files)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the spec of a file that is listed, or of an empty package above one."""
        if fullname in self._files:
            return importlib.util.spec_from_file_location(fullname, self._files[fullname])
        if any(name.startswith(f"{fullname}.") for name in self._files):
            return ModuleSpec(fullname, None, is_package=True)
        return None


def files_by_name() -> dict[str, str]:
    """Return the file of every module that does not lie below ``sys.path`` where its name says.

    Such as those that pytest, or a plugin's loader, imported from a file. Some of them another interpreter would find
    in its own way; naming them does no harm, as this list is looked at last.
    """
    roots = [Path(entry or ".").absolute() for entry in sys.path]
    places = {str(root) for root in roots}
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = spec.origin if spec is not None and spec.has_location else None
        if name != "__main__" and isinstance(origin, str) and not _lies_below(name, origin, places):
            found[name] = origin
    return found


def modules_without_files() -> list[ModuleType]:
    """Return the modules of this process that no other one can import, as they were made by hand, without a file."""
    return [
        module
        for name, module in list(sys.modules.items())
        if type(module) is ModuleType and name != "__main__" and _is_made_by_hand(sys.modules.get(name.split(".")[0]))
    ]


def _is_made_by_hand(top: object) -> bool:
    return type(top) is ModuleType and getattr(top, "__spec__", None) is None and not hasattr(top, "__file__")


def _lies_below(name: str, origin: str, places: set[str]) -> bool:
    """Whether a module's file is where an entry of the path and its name say; extension suffixes count as its name."""
    parts = name.split(".")
    file = Path(origin)
    file = file.parent if file.name.startswith("__init__.") else file.parent / file.name.split(".")[0]
    return file.parts[-len(parts) :] == tuple(parts) and str(Path(*file.parts[: -len(parts)])) in places
