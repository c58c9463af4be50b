"""The fields of a JSON document from a file, read one by one: what is missing or of another kind is named.

Files may be damaged, from another version, or somebody else's. A reader that takes what it finds would pass the damage
on; these readers name the document and the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from aitune.exceptions import DocumentError

__all__ = ["Fields", "parse"]

T = TypeVar("T")

_LONGEST_SHOWN = 80


_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""How half of a surrogate pair is written, which is no text and can be encoded nowhere."""


def parse(text: str | bytes, where: str) -> Fields:
    """Read a JSON document whose top is an object.

    Args:
        text: The document.
        where: What it is called in messages.

    Raises:
        DocumentError: If it is no JSON, its top is no object, a name occurs twice, it is nested without end, or it
            holds a number that JSON does not have or half of a character.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_short_int)
        if _HALF.search(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            json.dumps(value, ensure_ascii=False).encode()  # halves may have come together
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise DocumentError(where, "", f"is not readable as JSON: {_brief(error)}") from error
    if not isinstance(value, dict):
        raise DocumentError(where, "", f"must be an object, not {_shown(value)}")
    return Fields(value, where)


class Fields:
    """One object of a JSON document. Every method raises :class:`~aitune.exceptions.DocumentError` naming the field.

    Args:
        values: The object.
        where: The document's name in messages.
        path: Where in the document the object is.
    """

    def __init__(self, values: dict[str, Any], where: str, path: str = "") -> None:
        self._values = values
        self._where = where
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields, in their order."""
        return tuple(self._values)

    def error(self, name: str, problem: str) -> DocumentError:
        """Return the error for a field whose value cannot be used."""
        return DocumentError(self._where, f"{self._path}.{name}" if self._path else name, problem)

    def text(self, name: str, *, longest: int = 100_000) -> str:
        """Return a string."""
        value = self._get(name, "a string", lambda value: isinstance(value, str))
        if len(value) > longest:
            raise self.error(name, f"must have at most {longest} characters, not {len(value)}")
        return str(value)

    def word(self, name: str, allowed: Iterable[str]) -> str:
        """Return one of a closed set of strings."""
        words = tuple(allowed)
        return str(self._get(name, f"one of {', '.join(words)}", lambda value: type(value) is str and value in words))

    def boolean(self, name: str) -> bool:
        """Return True or False."""
        return bool(self._get(name, "true or false", lambda value: isinstance(value, bool)))

    def integer(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a whole number in a range."""
        return int(
            self._get(name, f"a whole number from {least} to {most}", lambda v: _is_integer(v) and least <= v <= most)
        )

    def number(self, name: str) -> float:
        """Return a finite number."""
        return float(self._get(name, "a number", lambda value: _is_number(value) and math.isfinite(value)))

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return None where the field is null or missing, else what ``read`` returns for it."""
        return None if self._values.get(name) is None else read(name)

    def object(self, name: str) -> Fields:
        """Return an object within."""
        value = self._get(name, "an object", lambda value: isinstance(value, dict))
        return Fields(value, self._where, f"{self._path}.{name}" if self._path else name)

    def objects(self, name: str, most: int = 100_000) -> list[Fields]:
        """Return the objects of a list."""
        items = self.list(name, most)
        path = f"{self._path}.{name}" if self._path else name
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise self.error(f"{name}[{index}]", f"must be an object, not {_shown(item)}")
        return [Fields(item, self._where, f"{path}[{index}]") for index, item in enumerate(items)]

    def list(self, name: str, most: int = 100_000) -> list[Any]:
        """Return a list of anything."""
        value = self._get(name, "a list", lambda value: isinstance(value, list))
        if len(value) > most:
            raise self.error(name, f"must have at most {most} entries, not {len(value)}")
        return list(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        return tuple(
            self._get(name, "a list of strings", lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v))
        )

    def words(self, name: str) -> dict[str, str]:
        """Return an object whose values are strings."""
        return dict(
            self._get(
                name,
                "an object of strings",
                lambda v: isinstance(v, dict) and all(isinstance(item, str) for item in v.values()),
            )
        )

    def raw(self, name: str) -> Any:
        """Return whatever the field holds."""
        return self._get(name, "there", lambda _: True)

    def _get(self, name: str, wanted: str, holds: Callable[[Any], bool]) -> Any:
        if name not in self._values:
            raise self.error(name, "is missing")
        value = self._values[name]
        if not holds(value):
            raise self.error(name, f"must be {wanted}, not {_shown(value)}")
        return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return values


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _short_int(text: str) -> int:
    if len(text) > 30:  # Python refuses thousands of digits with an error of its own, and needs quadratic time below
        raise ValueError("a number has too many digits")
    return int(text)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if not isinstance(value, str) else repr(value[:_LONGEST_SHOWN])
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _brief(error: BaseException) -> str:
    return str(error)[:_LONGEST_SHOWN] or type(error).__name__
