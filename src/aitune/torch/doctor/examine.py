"""The examination: looks at machine, software and backends, and says what it found."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend import Backend
from aitune.torch.backend.registry import available_backends, missing_requirement
from aitune.torch.config import config
from aitune.torch.doctor import surroundings
from aitune.torch.doctor.diagnosis import BackendState, Diagnosis
from aitune.torch.doctor.problems import problems
from aitune.torch.report import FrozenMap

__all__ = ["doctor"]

_SECONDS = 300.0
_NEED_A_COMPILER = ("TorchInductorJitBackend", "TorchInductorAotBackend", "TorchAOBackend")


def doctor(deep: bool = False) -> Diagnosis:
    """Find out what this machine and this environment can tune with.

    Nothing is imported beyond aitune and torch, no device is initialised, and nothing is written.

    Args:
        deep: Also let each backend that looks usable serve a small module, in a process of its own, which imports its
            library and writes to a temporary folder: up to a minute each.

    Returns:
        Device, versions, store, and each backend: usable, or why not and what to install. ``print`` shows tables.

    Raises:
        AITuneUserInputError: If ``deep`` is no bool.
    """
    if not isinstance(deep, bool):
        raise AITuneUserInputError(f"deep must be True or False, not {deep!r}")
    gpus = surroundings.accelerators()
    devices = ("cpu", "cuda") if gpus else ("cpu",)
    brought_by = importlib.metadata.packages_distributions()
    states = [_state(name, kind(), devices, brought_by) for name, kind in available_backends().items()]
    if deep:
        states = [_tried(state) if state.usable else state for state in states]
    return Diagnosis(
        machine=FrozenMap(surroundings.machine(gpus)),
        software=FrozenMap(surroundings.software()),
        store=FrozenMap(surroundings.store(config.cache_dir)),
        jit=FrozenMap(surroundings.just_in_time()),
        backends=tuple(states),
        problems=problems(gpus, config.cache_dir),
    )


def _state(
    name: str, backend: Backend[Any], devices: Sequence[str], brought_by: Mapping[str, list[str]]
) -> BackendState:
    there = [one.library for one in backend.requires if one.library in brought_by]
    libraries = FrozenMap({library: importlib.metadata.version(brought_by[library][0]) for library in there})
    if not set(devices) & set(backend.devices):
        return BackendState(name, False, f"needs {' or '.join(backend.devices)}", libraries)
    missing = missing_requirement(backend)
    if missing is not None:
        return BackendState(name, False, missing.reason, libraries)
    if name in _NEED_A_COMPILER and "cuda" not in devices and not surroundings.compiler():
        return BackendState(name, False, "needs a C++ compiler: install g++ or clang++", libraries)
    return BackendState(name, True, "", libraries)


def _tried(state: BackendState) -> BackendState:
    """Let a backend serve a small module in a process of its own, whatever that does to the process."""
    command = [sys.executable, "-m", "aitune.torch.doctor.rehearsal", state.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return BackendState(
            state.name, False, f"took more than {_SECONDS:g} s for a small module", state.libraries, True
        )
    if done.returncode == 0:
        return BackendState(state.name, True, "", state.libraries, True)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = said[-1].strip()[:400] if said and done.returncode > 0 else f"its process ended with {done.returncode}"
    return BackendState(state.name, False, reason, state.libraries, True)
