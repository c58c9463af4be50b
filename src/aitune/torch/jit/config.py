"""``jit_config``: the settings of just-in-time tuning, on top of ``config``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from aitune.torch.config import Field, Settings, boolean, config, folder, integer, optional

if TYPE_CHECKING:
    from aitune.torch.tune_strategy import TuneStrategy

__all__ = ["JITConfig", "JITMode", "jit_config"]


class JITMode(enum.Enum):
    """When modules are tuned."""

    TUNE_EAGER = "tune_eager"
    """After the forward pass that completes the samples."""
    TUNE_DEFERRED = "tune_deferred"
    """As soon as ``aitune.torch.jit.tune.deferred()`` was called and the samples are complete."""
    INSPECT = "inspect"
    """Never; calls are only looked at."""

    def __str__(self) -> str:
        return self.value


def _mode(value: Any) -> JITMode:
    if isinstance(value, JITMode):
        return value
    if not isinstance(value, str):
        raise TypeError(value)
    return JITMode(value.strip().lower())


def _names(value: Any) -> tuple[str, ...]:
    """Take names, or a text with commas between them."""
    parts: Iterable[Any] = value.split(",") if isinstance(value, str) else value
    names = [part.strip() if isinstance(part, str) else part for part in parts]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(value)
    return tuple(name for name in names if name)


def _device(value: Any) -> torch.device:
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        raise TypeError(value)
    try:
        return torch.device(value)
    except RuntimeError as error:
        raise ValueError(value) from error


def _strategy(value: Any) -> TuneStrategy:
    from aitune.torch.tune_strategy import TuneStrategy

    if isinstance(value, TuneStrategy):
        return value
    if isinstance(value, str):
        from aitune.torch.jit.strategy import strategy_of

        return strategy_of(value)
    raise TypeError(value)


class JITConfig(Settings):
    """Settings of just-in-time tuning. Each is read when a decision is due, so it may be set at any time before that.

    A field's default comes from ``AITUNE_JIT_<FIELD>`` where that is set. Lists are written with commas there, a
    strategy as ``MaxThroughputStrategy`` or ``FirstWinsStrategy(OpenVINOBackend, ONNXRuntimeBackend)``.

    Attributes:
        mode: When modules are tuned.
        min_samples: Calls that are recorded before a module is tuned.
        max_depth_level: Level of the deepest modules that may be tuned; heads are level 0.
        min_parameters: Modules with fewer are not tuned.
        detect_graph_breaks: Look for graph breaks first; a module that has one is left alone, and its children tuned.
        skip_modules: Class names that are not tuned, nor what is below them.
        patch_exclude: Package prefixes or full class names that are not looked at; modules below them are.
        cache_dir: Where builds put files and logs; by default the folder ``jit`` in ``config.cache_dir``. Once set,
            what is kept for the next run is there as well, instead of in ``config.cache_dir``.
        strategy: How modules are tuned; None is the first of the device's backends that is right and faster.
        device: Tune only modules on this device; None tunes them wherever they are. Nothing is moved: the program
            would go on passing tensors of the other device.
        batch_axis_required: Do not tune before the recorded calls differed in a leading axis. Unless set, False while
            ``min_samples`` is 1, True above.
        dry_run: Log what would be tuned, and change nothing.
        raise_failures: Raise what goes wrong in aitune itself instead of stepping aside; for tests of aitune.
        summary: Whether a line at exit says what was tuned; None does where aitune came in by the environment.
    """

    mode: JITMode
    min_samples: int
    max_depth_level: int
    min_parameters: int
    detect_graph_breaks: bool
    skip_modules: tuple[str, ...]
    patch_exclude: tuple[str, ...]
    cache_dir: Path
    strategy: TuneStrategy | None
    device: torch.device | None
    batch_axis_required: bool
    dry_run: bool
    raise_failures: bool
    summary: bool | None

    FIELDS: ClassVar[Mapping[str, Field]] = MappingProxyType({
        "mode": Field(
            JITMode.TUNE_EAGER, "a JITMode: TUNE_EAGER, TUNE_DEFERRED or INSPECT", _mode, "AITUNE_JIT_MODE"
        ),
        "min_samples": Field(1, "an integer of at least 1", integer(1), "AITUNE_JIT_MIN_SAMPLES"),
        "max_depth_level": Field(1, "an integer of at least 0", integer(0), "AITUNE_JIT_MAX_DEPTH_LEVEL"),
        "min_parameters": Field(0, "an integer of at least 0", integer(0), "AITUNE_JIT_MIN_PARAMETERS"),
        "detect_graph_breaks": Field(False, "True or False", boolean, "AITUNE_JIT_DETECT_GRAPH_BREAKS"),
        "skip_modules": Field((), "a list of class names", _names, "AITUNE_JIT_SKIP_MODULES"),
        "patch_exclude": Field(
            (), "a list of package prefixes or full class names", _names, "AITUNE_JIT_PATCH_EXCLUDE"
        ),
        "cache_dir": Field(None, "a path", optional(folder), "AITUNE_JIT_CACHE_DIR"),
        "strategy": Field(
            None,
            "a TuneStrategy or None; as text 'MaxThroughputStrategy' or 'FirstWinsStrategy(OpenVINOBackend)'",
            optional(_strategy),
            "AITUNE_JIT_STRATEGY",
        ),
        "device": Field(None, "a device such as 'cuda', or None", optional(_device), "AITUNE_JIT_DEVICE"),
        "batch_axis_required": Field(
            None, "True or False", optional(boolean), "AITUNE_JIT_BATCH_AXIS_REQUIRED"
        ),
        "dry_run": Field(False, "True or False", boolean, "AITUNE_JIT_DRY_RUN"),
        "raise_failures": Field(False, "True or False", boolean, "AITUNE_JIT_RAISE_FAILURES"),
        "summary": Field(None, "True, False or None", optional(boolean), "AITUNE_JIT_SUMMARY"),
    })  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if value is None and name == "cache_dir":
            return config.cache_dir / "jit"
        if value is None and name == "batch_axis_required":
            return self.min_samples > 1
        return value


jit_config = JITConfig()
