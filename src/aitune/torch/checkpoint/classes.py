"""Which classes a name in a checkpoint may stand for: containers that the program at hand has already, and no others.

A name never imports anything. It is looked up among modules that are imported, without running code of theirs (module
and class dictionaries alone), and the class must be a container or an enumeration and belong to the program of the
module that was passed to ``load``: its packages, what their files have imported by name, the standard containers, or
the output classes of transformers and diffusers.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable

import torch

__all__ = ["classes_of"]

_LIBRARIES = frozenset({"collections", "transformers", "diffusers"})


def classes_of(module: torch.nn.Module) -> Callable[[str], type]:
    """Return what finds the class of a name for a module; see :data:`~aitune.torch.graph.document.Classes`."""
    homes = {type(part).__module__ for part in module.modules()}
    packages = {home.partition(".")[0] for home in homes} - {"torch", "builtins"} | _LIBRARIES

    def find(name: str) -> type:
        home, _, qualname = name.partition(":")
        found = _look_up(home, qualname)
        if not isinstance(found, type) or f"{found.__module__}:{found.__qualname__}" != name:
            raise LookupError(f"names {name[:200]}, which this program has not imported")
        if home.partition(".")[0] not in packages and not any(_names(one, found) for one in homes):
            raise LookupError(f"names {name[:200]}, which is no class of the module's own program")
        if not _is_container(found):
            raise LookupError(f"names {name[:200]}, which is neither a container nor an enumeration")
        return found

    return find


def _look_up(home: str, qualname: str) -> object:
    place: object = sys.modules.get(home)
    for part in qualname.split("."):
        if place is None:
            return None
        place = vars(place).get(part) if hasattr(place, "__dict__") else None
    return place


def _names(home: str, kind: type) -> bool:
    return (
        any(value is kind for value in vars(sys.modules.get(home, object())).values()) if home in sys.modules else False
    )


def _is_container(kind: type) -> bool:
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or dataclasses.is_dataclass(kind) or issubclass(kind, (dict, enum.Enum))
