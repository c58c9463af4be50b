"""Python modules that only this process finds by their name, made known in another one by their files."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["ModuleFiles", "files_by_name", "modules_without_files", "nothing_hidden"]


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
    places = {place for place in map(_place, sys.path) if place is not None}
    return {name: origin for name, origin in _origins() if not _lies_below(name, origin, places)}


def nothing_hidden(path: Sequence[str]) -> list[str]:
    """Return the entries of a path in an order in which names mean what they mean here.

    Entries come last that hide, in an interpreter that begins with them, what this one imported from behind them: a
    ``json.py`` in a folder that was put in front when the standard library's was imported already.
    """
    places = {_place(entry): index for index, entry in reversed(list(enumerate(path)))}
    needed: dict[str, int] = {}
    for name, origin in _origins():
        file = Path(origin)
        home = file.parent.parent if file.name.startswith("__init__.") else file.parent
        if "." not in name and str(home) in places:
            needed[name] = places[str(home)]
    hiding = {
        entry
        for index, entry in enumerate(path)
        if any(needed.get(name, index) > index for name in _names_in(entry, needed))
    }
    return [*(entry for entry in path if entry not in hiding), *(entry for entry in path if entry in hiding)]


def modules_without_files() -> list[ModuleType]:
    """Return the modules of this process that no other one can import, as they were made by hand, without a file."""
    return [
        module
        for name, module in list(sys.modules.items())
        if type(module) is ModuleType and name != "__main__" and _is_made_by_hand(sys.modules.get(name.split(".")[0]))
    ]


def _is_made_by_hand(top: object) -> bool:
    return type(top) is ModuleType and getattr(top, "__spec__", None) is None and not hasattr(top, "__file__")


def _origins() -> Iterator[tuple[str, str]]:
    """Go through the names and files of the modules of this process that are from a file."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None) if getattr(spec, "has_location", False) else None
        if name != "__main__" and isinstance(origin, str):
            yield name, origin


def _place(entry: str) -> str | None:
    """Return the absolute form of an entry of the path, None for a relative one where the working folder is gone."""
    try:
        return str(Path(entry or ".").absolute())
    except OSError:
        return None


def _names_in(entry: str, names: Mapping[str, int]) -> Iterator[str]:
    """Go through those of some names that are modules in a folder; one without ``__init__`` hides nothing."""
    with contextlib.suppress(OSError, ValueError):  # no folder, or no longer
        for file in Path(entry).iterdir():
            stem, _, suffix = file.name.partition(".")
            is_module = suffix.endswith(("py", "so")) if suffix else (file / "__init__.py").exists()
            if stem in names and is_module:
                yield stem


def _lies_below(name: str, origin: str, places: set[str]) -> bool:
    """Whether a module's file is where an entry of the path and its name say; extension suffixes count as its name."""
    parts = name.split(".")
    file = Path(origin)
    file = file.parent if file.name.startswith("__init__.") else file.parent / file.name.split(".")[0]
    return file.parts[-len(parts) :] == tuple(parts) and str(Path(*file.parts[: -len(parts)])) in places
