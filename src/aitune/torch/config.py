"""The settings, and the only reader of the environment.

``ait.config`` is an instance of :class:`Config`. A field takes effect the moment it is set; its default comes from the
environment variable ``AITUNE_<FIELD>`` (or the documented older name) where there is one.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import platformdirs

from aitune.exceptions import AITuneUserInputError

__all__ = [
    "WITHOUT_EFFECT",
    "Config",
    "Field",
    "Settings",
    "aitune_cache_dir",
    "autowrapt_bootstrap",
    "config",
    "console_output",
    "without_effect",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Field:
    """How one setting is checked and where its default comes from.

    Attributes:
        default: The value without an environment variable.
        allowed: What may be assigned, in the words of an error message.
        convert: Takes a value or the text of a variable, returns the value to keep; raises ValueError or TypeError.
        variable: Environment variable; None reads none.
    """

    default: Any
    allowed: str
    convert: Callable[[Any], Any]
    variable: str | None = None


class Settings:
    """Named values that are checked at the assignment. Subclasses list their fields in ``FIELDS``.

    Raises:
        AttributeError: On an unknown name.
        ValueError: On a value that the field does not allow, naming what it does.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = MappingProxyType({})

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        values = {name: _initial(field, environ) for name, field in self.FIELDS.items()}
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; fields: {', '.join(sorted(self.FIELDS))}"
            )
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.FIELDS:
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; fields: {', '.join(sorted(self.FIELDS))}"
            )
        field = self.FIELDS[name]
        try:
            self._values[name] = field.convert(value)
        except (ValueError, TypeError):
            raise ValueError(f"{type(self).__name__}.{name} must be {field.allowed}, not {value!r}") from None

    def __delattr__(self, name: str) -> None:
        """Go back to the default of a field, from the environment as it is now where that has one."""
        if name not in self.FIELDS:
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; fields: {', '.join(sorted(self.FIELDS))}"
            )
        self._values[name] = _initial(self.FIELDS[name], os.environ)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.FIELDS})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def boolean(value: Any) -> bool:
    """Take a bool, or the text of one."""
    if isinstance(value, bool):
        return value
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError(value)


def integer(least: int) -> Callable[[Any], int]:
    """Make a converter for integers of at least ``least``."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError(value)
        number = int(value)
        if number < least:
            raise ValueError(value)
        return number

    return convert


def positive(value: Any) -> float:
    """Take a number above zero, or the text of one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(value)
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(value) from error
    if not number > 0:
        raise ValueError(value)
    return number


def checked_seconds(name: str, value: Any) -> float | None:
    """Return a time limit that a caller passed; it may be infinite.

    Raises:
        AITuneUserInputError: If it is not None or a number above 0 that a float can hold.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str):
            raise TypeError(value)
        return positive(value)
    except (ValueError, TypeError):
        shown = "one that no float holds" if isinstance(value, int) and value.bit_length() > 1000 else repr(value)
        raise AITuneUserInputError(f"{name} must be seconds above 0, or None for no limit, not {shown}") from None


def finite(seconds: float | None) -> float | None:
    """Return a time limit, None for an infinite one: no limit."""
    return None if seconds == math.inf else seconds


def choice(*allowed: str) -> Callable[[Any], str]:
    """Make a converter for a closed set of words."""

    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(value)
        return value

    return convert


def folder(value: Any) -> Path:
    """Take a path, or the text of one."""
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise TypeError(value)
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # nobody's home is known by that name
        raise ValueError(value) from error


def optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a converter that also takes None, or the text ``none``."""

    def convert_optional(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
            return None
        return convert(value)

    return convert_optional


def _cache_folder(value: Any) -> Path:
    """Take a folder; None is the one below the user's cache folder, or one of temporary files for who has no home."""
    if value is not None:
        return folder(value)
    try:
        return Path(platformdirs.user_cache_dir("aitune", appauthor=False))
    except RuntimeError:  # neither HOME nor an entry in the list of users, as with any number in a container
        return Path(tempfile.gettempdir(), f"aitune-{os.getuid()}" if hasattr(os, "getuid") else "aitune")


class Config(Settings):
    """Settings that AOT and JIT mode share.

    Those in :data:`WITHOUT_EFFECT` are checked and kept, and change nothing in this version. A tune says so in its
    notes where one of them is set.

    Attributes:
        cache_dir: Root of everything that aitune writes.
        min_num_samples: Calls that a graph needs before it is tuned.
        max_num_samples_stored: Calls whose inputs are kept for one graph; the others only widen its ranges.
        device_after_tuning: Where the weights of an original go once ``tune()`` has engines for all its graphs: None
            stays; "cpu" frees the device, and they are brought back for each call that no engine was made for; "meta"
            frees all, such calls raise, and changes are not noticed.
        tuning_data_output_path: File that takes the JSON record of every tune, None for none.
        strict_mode: Whether a leaf that is no tensor makes another graph when it changes.
        enable_transformers_integration: Know the cache and output classes of transformers as containers.
        enable_diffusers_integration: Replace what diffusers modules need replaced for an export.
        isolation: "process" builds in a worker, "none" in this process.
        backend_time_limit: Seconds that one backend may take to build; ``float("inf")`` for no limit.
        backend_memory_limit: Bytes that one build may take, None for no limit.
        max_parallel_builds: Workers that may build at once.
        reuse_store: Whether engines and verdicts kept earlier are used.
        store_size_limit: Bytes of engine files that the store keeps, None for no limit; what was used longest ago goes.
        cache_min_free_bytes: Warn when less is left free where the store is, None never does.
        grad_policy: "engine" runs engines also while gradients are enabled, "eager" does not.
    """

    cache_dir: Path
    min_num_samples: int
    max_num_samples_stored: int
    device_after_tuning: Literal["cpu", "meta"] | None
    tuning_data_output_path: Path | None
    strict_mode: bool
    enable_transformers_integration: bool
    enable_diffusers_integration: bool
    isolation: Literal["process", "none"]
    backend_time_limit: float
    backend_memory_limit: int | None
    max_parallel_builds: int
    reuse_store: bool
    store_size_limit: int | None
    cache_min_free_bytes: int | None
    grad_policy: Literal["engine", "eager"]

    FIELDS: ClassVar[Mapping[str, Field]] = MappingProxyType({
        "cache_dir": Field(None, "a path", _cache_folder, "AITUNE_CACHE_DIR"),
        "min_num_samples": Field(1, "an integer of at least 1", integer(1), "AITUNE_MIN_NUM_SAMPLES"),
        "max_num_samples_stored": Field(4, "an integer of at least 1", integer(1), "AITUNE_MAX_NUM_SAMPLES_STORED"),
        "device_after_tuning": Field(
            None, "None, 'cpu' or 'meta'", optional(choice("cpu", "meta")), "AITUNE_DEVICE_AFTER_TUNING"
        ),
        "tuning_data_output_path": Field(None, "a path or None", optional(folder), "AITUNE_TUNING_DATA_PATH"),
        "strict_mode": Field(True, "True or False", boolean, "AITUNE_STRICT_MODE"),
        "enable_transformers_integration": Field(True, "True or False", boolean, "AITUNE_TRANSFORMERS_INTEGRATION"),
        "enable_diffusers_integration": Field(False, "True or False", boolean, "AITUNE_DIFFUSERS_INTEGRATION"),
        "isolation": Field("process", "'process' or 'none'", choice("process", "none"), "AITUNE_ISOLATION"),
        "backend_time_limit": Field(900.0, "seconds above 0", positive, "AITUNE_BACKEND_TIME_LIMIT"),
        "backend_memory_limit": Field(
            None, "bytes of at least 1, or None", optional(integer(1)), "AITUNE_BACKEND_MEMORY_LIMIT"
        ),
        "max_parallel_builds": Field(1, "an integer of at least 1", integer(1), "AITUNE_MAX_PARALLEL_BUILDS"),
        "reuse_store": Field(True, "True or False", boolean, "AITUNE_REUSE_STORE"),
        "store_size_limit": Field(
            64 << 30, "bytes of at least 1, or None", optional(integer(1)), "AITUNE_STORE_SIZE_LIMIT"
        ),
        "cache_min_free_bytes": Field(
            None, "bytes of at least 1, or None", optional(integer(1)), "AITUNE_CACHE_MIN_FREE_BYTES"
        ),
        "grad_policy": Field("engine", "'engine' or 'eager'", choice("engine", "eager"), "AITUNE_GRAD_POLICY"),
    })  # fmt: skip


WITHOUT_EFFECT = ("enable_diffusers_integration",)
"""Fields of :class:`Config` that change nothing yet."""


def without_effect(settings: Config) -> tuple[str, ...]:
    """Return the fields that were set to something else than their default and change nothing."""
    return tuple(name for name in WITHOUT_EFFECT if getattr(settings, name) != settings.FIELDS[name].default)


def _initial(field: Field, environ: Mapping[str, str]) -> Any:
    text = environ.get(field.variable) if field.variable is not None else None
    if text is not None:
        try:
            return field.convert(text)
        except (ValueError, TypeError):
            _log.warning("%s=%r is ignored: it must be %s", field.variable, text, field.allowed)
    return field.convert(field.default)


config = Config()


def aitune_cache_dir() -> Path:
    """Return the root of everything that aitune writes, as set now."""
    return config.cache_dir


def autowrapt_bootstrap() -> str:
    """Return what ``AUTOWRAPT_BOOTSTRAP`` is now: the entry-point groups that autowrapt starts, comma-separated."""
    return os.environ.get("AUTOWRAPT_BOOTSTRAP", "")


def console_output() -> bool:
    """Whether builders' own output is shown live, as ``AITUNE_CONSOLE_OUTPUT`` says now."""
    text = os.environ.get("AITUNE_CONSOLE_OUTPUT", "")
    try:
        return boolean(text) if text else False
    except ValueError:
        _log.warning("AITUNE_CONSOLE_OUTPUT=%r is ignored: it must be 1 or 0", text)
        return False
