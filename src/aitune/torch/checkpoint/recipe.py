"""A configured backend as JSON, and back: by the backend's name, its options checked by its own config class."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from typing import Any

import torch

import aitune.torch.backend as backends
from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend import Backend
from aitune.torch.backend.registry import backend_by_name
from aitune.torch.fields import Fields

__all__ = ["free_options", "read_recipe", "recipe_record"]

_ATOMS = (bool, int, float, str, type(None))


def recipe_record(backend: Backend[Any]) -> dict[str, Any]:
    """Return a backend as a JSON object.

    Raises:
        ValueError: If it is none that its name leads to, or an option holds what a file cannot hold: a function.
    """
    try:
        known = backend_by_name(backend.name)
    except AITuneUserInputError as error:
        raise ValueError(str(error)) from error
    if known is not type(backend):
        raise ValueError(f"{backend.name} is not the backend of that name")
    return {"name": backend.name, "config": _written(backend.config, backend.name)["fields"]}


def read_recipe(record: Fields) -> Backend[Any]:
    """Make a backend.

    Raises:
        DocumentError: If there is no backend of the name, or its config refuses an option.
    """
    name = record.text("name", longest=200)
    try:
        kind = backend_by_name(name)
        options = _fields(record, "config", record.object("config").raw, record.object("config").names, kind)
        return kind(kind.config_class(**options))
    except (AITuneUserInputError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise record.error("config", f"cannot be used for {name}: {error}") from error


def free_options(backend: Backend[Any]) -> tuple[str, ...]:
    """Return the options of a backend that pass what they hold on to a library, and hold something.

    Such options can name files to read or write, or libraries to load.
    """
    return tuple(
        item.name
        for item in dataclasses.fields(backend.config)
        if isinstance(value := getattr(backend.config, item.name), Mapping) and value
    )


def _written(value: Any, where: str) -> Any:
    if type(value) in _ATOMS:
        return value
    if isinstance(value, enum.Enum):
        return {"enum": type(value).__name__, "member": value.name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_written(item, where) for item in value]}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"dict": {key: _written(item, where) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _written(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
        return {"config": type(value).__name__, "fields": fields}
    raise ValueError(f"{where} holds a {type(value).__name__}, which a file cannot hold")


def _fields(record: Fields, name: str, get: Any, names: tuple[str, ...], owner: type) -> dict[str, Any]:
    return {field: _read(record, name, get(field), owner, 0) for field in names}


def _read(record: Fields, name: str, value: Any, owner: type, depth: int) -> Any:
    if type(value) in _ATOMS:
        return value
    if not isinstance(value, dict) or depth > 20:
        raise record.error(name, "holds no option that can be read")
    if "enum" in value:
        return _known(record, name, value["enum"], owner, enum.Enum).__members__[value["member"]]
    if "dtype" in value:
        found = vars(torch).get(value["dtype"])
        if not isinstance(found, torch.dtype):
            raise record.error(name, "names no dtype of torch")
        return found
    if "dict" in value:
        return {str(key): _read(record, name, item, owner, depth + 1) for key, item in value["dict"].items()}
    if "config" in value:
        kind = _known(record, name, value["config"], owner, object)
        if not dataclasses.is_dataclass(kind):
            raise record.error(name, f"names no class of options: {kind.__name__}")
        make: Any = kind
        return make(**{key: _read(record, name, item, owner, depth + 1) for key, item in value["fields"].items()})
    sequence = {"list": list, "tuple": tuple}.get(next(iter(value), ""))
    if sequence is None:
        raise record.error(name, "holds no option that can be read")
    return sequence(_read(record, name, item, owner, depth + 1) for item in next(iter(value.values())))


def _known(record: Fields, name: str, wanted: Any, owner: type, base: type) -> Any:
    """Return a class of options: a public one of the backends, or one of the module that the backend comes from."""
    home = sys.modules.get(owner.__module__)
    for place in (backends, home):
        found = vars(place).get(wanted) if place is not None and isinstance(wanted, str) else None
        own = getattr(found, "__module__", "").startswith(("aitune.", owner.__module__))
        if isinstance(found, type) and issubclass(found, base) and own:
            return found
    raise record.error(name, f"names a class that is none of options: {wanted!r}")
