"""Settings of the process and thread that a call may leave changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Ambient"]

_AUTOCAST_DEVICES = ("cpu", "cuda")
_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


@dataclass(frozen=True)
class Ambient:
    """Grad mode, inference mode, autocast, default dtype, threads, precision and determinism of torch.

    Attributes:
        values: Each setting by its name.
    """

    values: tuple[tuple[str, Any], ...]

    @classmethod
    def capture(cls) -> Ambient:
        """Read the settings as they are now; starts no device."""
        return cls(tuple((name, read()) for name, (read, _) in _settings().items()))

    def restore(self) -> None:
        """Set what has changed back."""
        settings = _settings()
        for name, value in self.values:
            read, write = settings[name]
            if read() != value:
                write(value)

    def changed(self) -> list[str]:
        """Return the names of the settings that are no longer what they were."""
        settings = _settings()
        return [name for name, value in self.values if settings[name][0]() != value]


def _settings() -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {
        "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "inference mode": (torch.is_inference_mode_enabled, _set_inference_mode),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "float32 matmul precision": (
            lambda: _read(torch.get_float32_matmul_precision),
            lambda value: None if value is None else torch.set_float32_matmul_precision(value),
        ),
        "deterministic algorithms": (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark"),
        "cudnn.allow_tf32": _attribute(torch.backends.cudnn, "allow_tf32"),
        "matmul.allow_tf32": _attribute(torch.backends.cuda.matmul, "allow_tf32"),
        "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    }
    for kind in _AUTOCAST_DEVICES:
        settings[f"autocast on {kind}"] = (
            lambda kind=kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),  # type: ignore[misc]
            lambda value, kind=kind: _set_autocast(kind, *value),  # type: ignore[misc]
        )
    return settings


def _attribute(owner: Any, name: str) -> _Setting:
    return (
        lambda: _read(lambda: getattr(owner, name)),
        lambda value: None if value is None else setattr(owner, name, value),
    )


def _read(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except RuntimeError:  # torch >= 2.9 refuses the older name of a setting once the newer one was used
        return None


def _set_inference_mode(_: bool) -> None:
    """Do nothing: torch has no setter, only blocks; leaving the one around (see ``calm``) sets it back."""


def _set_autocast(kind: str, enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
