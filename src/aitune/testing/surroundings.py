"""What a build or a call must leave as it was: the module, and whatever of the process others rely on."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.torch.check.ambient import Ambient
from aitune.torch.check.rng import RngState
from aitune.torch.check.state import Snapshot, take_snapshot

__all__ = ["Surroundings"]


@dataclass(frozen=True, eq=False)
class Surroundings:
    """State of the process and of a module at one moment.

    Covered are random number generators, settings of torch (gradients, autocast, default dtype and device, threads,
    precision, determinism), environment, working folder, import path, warning filters, loggers with their levels and
    handlers, standard streams, signal handlers, exception and display hooks; and of the module everything that it
    holds: parameters, buffers, flags, hooks, children, attributes.

    Attributes:
        settings: Settings of torch.
        rng: State of the random number generators.
        process: Everything else of the process, by name.
        module: What the module held.
    """

    settings: Ambient
    rng: RngState
    process: dict[str, Any]
    module: Snapshot

    @classmethod
    def capture(cls, module: torch.nn.Module) -> Surroundings:
        """Remember how things are now; changes nothing."""
        process = {name: read() for name, read in _READERS.items()}
        return cls(Ambient.capture(), RngState.capture(), process, take_snapshot(module))

    def changes(self) -> list[str]:
        """Return what is different now, each thing in a few words; empty if nothing is."""
        found = [f"torch's {name}" for name in self.settings.changed()]
        if not self.rng.same(RngState.capture()):
            found.append("random number generators")
        for name, read in _READERS.items():
            before, now = self.process[name], read()
            if name in _GROWING:
                now = {key: value for key, value in now.items() if key in before}
            if before != now:
                found.append(f"{name} ({_difference(before, now)})")
        return found + [f"the module's {path}" for path in self.module.changes(deep=True)]


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return ", ".join(str(key) for key in keys)
    return f"{before!r} became {now!r}"[:300]


def _loggers() -> dict[str, Any]:
    """Return level, flags and handlers of every logger."""
    named = logging.root.manager.loggerDict.items()
    found = {"root": logging.root, **{name: one for name, one in list(named) if isinstance(one, logging.Logger)}}
    states = {name: (one.level, one.propagate, one.disabled, tuple(one.handlers)) for name, one in found.items()}
    return {**states, "disabled up to": logging.root.manager.disable}


def _signal_handlers() -> dict[str, Any]:
    return {one.name: signal.getsignal(one) for one in signal.Signals}


_GROWING = ("loggers",)  # a library that is imported meanwhile makes its own

_READERS: dict[str, Callable[[], Any]] = {
    "default device": torch.get_default_device,
    "environment": lambda: dict(os.environ),
    "working folder": Path.cwd,
    "import path": lambda: list(sys.path),
    "warning filters": lambda: list(warnings.filters),
    "warning display": lambda: warnings.showwarning,
    "loggers": _loggers,
    "standard output": lambda: (sys.stdout, sys.stderr),
    "signal handlers": _signal_handlers,
    "exception hook": lambda: sys.excepthook,
}
