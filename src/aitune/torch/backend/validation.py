"""Checks that backend options share; each raises an error that names the option and what it may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch

from aitune.exceptions import AITuneUserInputError

__all__ = [
    "check_autocast",
    "check_bool",
    "check_choice",
    "check_exclusive",
    "check_int",
    "check_options",
    "refuse",
]

T = TypeVar("T")

_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16)


def refuse(owner: object, field: str, allowed: str, value: object) -> AITuneUserInputError:
    """Return the error for a value that an option cannot have."""
    return AITuneUserInputError(f"{type(owner).__name__}: {field} must be {allowed}, not {value!r}")


def check_choice(owner: object, field: str, choices: Iterable[object]) -> None:
    """Refuse a value that is none of ``choices``; None has to be among them to be allowed."""
    value = getattr(owner, field)
    allowed = tuple(choices)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in allowed):
        raise refuse(owner, field, f"one of {', '.join(map(repr, allowed))}", value)


def check_bool(owner: object, *fields: str, optional: bool = False) -> None:
    """Refuse values that are neither True nor False (nor None, if ``optional``)."""
    for field in fields:
        check_choice(owner, field, (True, False, None) if optional else (True, False))


def check_int(owner: object, field: str, low: int, high: int | None = None, *, optional: bool = True) -> None:
    """Refuse what is no whole number in the range (or None, if ``optional``)."""
    value = getattr(owner, field)
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        span = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
        raise refuse(owner, field, f"{span} or None" if optional else span, value)


def check_options(owner: object, field: str, *, optional: bool = True) -> None:
    """Refuse what is no mapping with text keys (or None, if ``optional``); the owner gets its own copy."""
    value: Any = getattr(owner, field)
    if optional and value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refuse(owner, field, "a dict with text keys" + (" or None" if optional else ""), value)
    object.__setattr__(owner, field, dict(value))


def check_exclusive(owner: object, first: str, second: str) -> None:
    """Refuse two options that say the same thing in two ways."""
    if getattr(owner, first) is not None and getattr(owner, second) is not None:
        raise AITuneUserInputError(f"{type(owner).__name__}: give {first} or {second}, not both")


def check_autocast(owner: object) -> None:
    """Check ``autocast_enabled`` and ``autocast_dtype``."""
    check_bool(owner, "autocast_enabled")
    check_choice(owner, "autocast_dtype", (*_AUTOCAST_DTYPES, None))
