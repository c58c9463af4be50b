"""What a caller of ``tune()`` asked for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check.check import Check
from aitune.torch.dataloader import BatchSource
from aitune.torch.module.handle import Handle
from aitune.torch.module.module import Module, unwrapped

__all__ = ["Request"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of ``tune()``; see there.

    Attributes:
        func: What is run, an ``ait.Module`` or a handle taken as the module itself.
        source: The batches of the dataset; None to use calls that were recorded before.
        dataset: The dataset as it was passed, for messages.
        device: Where modules are moved; None leaves them.
        dry_run: Whether to change nothing.
        ignore_failing_modules: Whether a module that fails is left alone instead of raising.
        time_limit: Seconds for everything; None for no limit.
        backend_time_limit: Seconds for one backend in its worker, infinite for no limit; None for what the
            configuration says.
        check: How outputs are judged.
        seed: Seeds synthesised inputs.
    """

    func: Callable[..., Any]
    source: BatchSource | None
    dataset: Any
    device: torch.device | None
    dry_run: bool
    ignore_failing_modules: bool
    time_limit: float | None
    backend_time_limit: float | None
    check: Check | None
    seed: int

    @property
    def module(self) -> torch.nn.Module | None:
        """``func`` where it is a module itself."""
        return self.func if isinstance(self.func, torch.nn.Module) else None


def checked_func(func: Any, *, has_dataset: bool) -> Any:
    """Return what to run.

    Raises:
        AITuneUserInputError: If it cannot be called, or without a dataset is a plain function.
    """
    if isinstance(func, Handle):
        func = func.module
    if isinstance(func, Module):
        func = unwrapped(func)
    if has_dataset and not callable(func):
        raise AITuneUserInputError(
            f"func must be a module or a function that calls wrapped modules, not {func!r}; for an object such as a"
            " pipeline pass its method, or a function that calls it"
        )
    if not has_dataset and (isinstance(func, type) or hasattr(func, "__code__")):
        raise AITuneUserInputError(
            "a plain function needs a dataset; without one, pass the wrapped module whose calls were recorded"
        )
    return func


def checked_device(device: Any) -> torch.device | None:
    """Return the device.

    Raises:
        AITuneUserInputError: If it is none, or is not there.
    """
    if device is None:
        return None
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise AITuneUserInputError(f"device={device!r} cannot be used here: {error}") from error
    return place


def checked_flag(name: str, value: Any) -> bool:
    """Return a switch.

    Raises:
        AITuneUserInputError: If it is not True or False.
    """
    if not isinstance(value, bool):
        raise AITuneUserInputError(f"{name} must be True or False, not {value!r}")
    return value


def checked_seed(value: Any) -> int:
    """Return a seed.

    Raises:
        AITuneUserInputError: If it is no integer of at least 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AITuneUserInputError(f"seed must be an integer of at least 0, not {value!r}")
    return value


def checked_check(value: Any) -> Check | None:
    """Return a check.

    Raises:
        AITuneUserInputError: If it is not None or an ``ait.Check``.
    """
    if value is not None and not isinstance(value, Check):
        raise AITuneUserInputError(f"check must be an ait.Check, not {value!r}")
    return value
