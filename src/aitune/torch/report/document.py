"""A result as a JSON document, and back."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

from aitune.exceptions import AITuneUserInputError, text_of
from aitune.torch.report.outcome import EndToEnd, GraphResult, ModuleResult, Outcome
from aitune.torch.trial import Trial, Verdict

__all__ = ["SCHEMA_VERSION", "from_document", "from_text", "to_document", "to_text"]

SCHEMA_VERSION = 1
"""Grows when a reader of the old form would misread the new one; added names do not count."""


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


def to_document(result: Outcome) -> dict[str, Any]:
    """Return a result as a dictionary of lists, strings, finite numbers, booleans and None."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **_plain_fields(result)}
    for name, module in result.modules.items():
        document["modules"][name]["state"] = module.state
    return document


def to_text(result: Outcome) -> str:
    """Return a result as JSON text."""
    return json.dumps(to_document(result), indent=2, allow_nan=False)


def from_text(text: str, cls: type[OutcomeT]) -> OutcomeT:
    """Read JSON text as :func:`from_document` does."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError) as error:
        raise AITuneUserInputError(f"this is no JSON text: {error}") from error
    return from_document(document, cls)


def from_document(document: Any, cls: type[OutcomeT]) -> OutcomeT:
    """Make a ``cls`` of what :func:`to_document` returned; names that are not known are left out.

    Raises:
        AITuneUserInputError: If it is something else, or was written by a newer version.
    """
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if not isinstance(version, int):
        raise AITuneUserInputError("this is no tuning result: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise AITuneUserInputError(
            f"this tuning result has schema_version {version}, from a newer aitune;"
            f" this one reads up to {SCHEMA_VERSION}"
        )
    try:
        end = document.get("end_to_end")
        result: OutcomeT = _read(
            cls,
            document,
            modules={name: _read_module(entry) for name, entry in document["modules"].items()},
            end_to_end=None if end is None else _read(EndToEnd, end),
        )
        return result
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AITuneUserInputError(f"this is no tuning result: {text_of(error)}") from error


def _plain_fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one line a kind of value
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, numbers.Integral):  # also numpy's
        return int(value)
    if isinstance(value, numbers.Real):
        return _number(float(value))
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if dataclasses.is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _read(cls: type[Any], document: Mapping[str, Any], **given: Any) -> Any:
    """Make a ``cls`` of the entries of ``document`` that are its fields, and of the ``given`` ones."""
    values = dict(given)
    for field in dataclasses.fields(cls):
        if field.name in given or field.name not in document:
            continue
        value = document[field.name]
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, str) and "float" in str(field.type):  # by the annotation; NaN was a string
            value = float(value)
        values[field.name] = value
    return cls(**values)


def _read_module(document: Mapping[str, Any]) -> ModuleResult:
    failure = document.get("failure")
    result: ModuleResult = _read(
        ModuleResult,
        document,
        graphs=tuple(_read_graph(entry) for entry in document["graphs"]),
        failure=document.get("error") if failure is None else failure,
        error=None,
    )
    return result


def _read_graph(document: Mapping[str, Any]) -> GraphResult:
    trials = tuple(_read(Trial, entry, verdict=Verdict(entry["verdict"])) for entry in document["trials"])
    result: GraphResult = _read(GraphResult, document, trials=trials)
    return result
