"""A backend serves a small module: ``python -m aitune.torch.doctor.rehearsal NAME``; what fails is the last line."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from aitune.torch.backend import Backend
from aitune.torch.backend.registry import backend_by_name
from aitune.torch.config import config
from aitune.torch.measure import ProfilingConfig
from aitune.torch.module import Module
from aitune.torch.tune_strategy import OneBackendStrategy
from aitune.torch.tuning import tune

__all__ = ["rehearse"]

_OPTIONS: dict[str, dict[str, Any]] = {"TorchAOBackend": {"quantization": "int8dq"}}  # it needs one


def rehearse(backend: Backend[Any], device: str) -> None:
    """Build, check and call an engine.

    Raises:
        Exception: What the backend raises, or ``CorrectnessError``.
    """
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)).eval()
    strategy = OneBackendStrategy(backend, profiling_config=ProfilingConfig(max_seconds=0.05))
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    samples = list(torch.randn(4, 32))
    tune(Module(model, "rehearsal", strategy), samples, device=device, progress=False, ignore_failing_modules=False)


def main(name: str) -> int:
    """Rehearse on the best device that the backend and this machine have."""
    kind = backend_by_name(name)
    options = _OPTIONS.get(name)
    backend = kind(kind.config_class(**options)) if options else kind()
    device = "cuda" if "cuda" in backend.devices and torch.cuda.is_available() else "cpu"
    try:
        # A store of its own and empty: an engine that was kept earlier would say nothing about building one.
        with tempfile.TemporaryDirectory(prefix="aitune-doctor-") as folder:
            config.cache_dir = Path(folder)
            rehearse(backend, device)
    except Exception as error:  # noqa: BLE001 - backends run foreign code
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 - read by doctor
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
