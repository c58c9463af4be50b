"""Python modules that only this process finds by their name, made known in another one by their files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["ModuleFiles", "files_by_name", "without_a_file"]


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


def without_a_file(name: str) -> ModuleType | None:
    """Return a module of this process that no other one can import, as it was made without a file; None otherwise."""
    module = sys.modules.get(name)
    if module is None or name == "__main__" or name in sys.builtin_module_names:
        return None
    spec = getattr(module, "__spec__", None)
    if spec is None:
        file = getattr(module, "__file__", None)
        return module if isinstance(module, ModuleType) and not file else None
    return None


def _lies_below(name: str, origin: str, places: set[str]) -> bool:
    """Whether a module's file is where an entry of the path and its name say; extension suffixes count as its name."""
    parts = name.split(".")
    file = Path(origin)
    file = file.parent if file.name.startswith("__init__.") else file.with_name(file.name.split(".")[0])
    return file.parts[-len(parts) :] == tuple(parts) and str(Path(*file.parts[: -len(parts)])) in places
