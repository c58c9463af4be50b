"""A build in this process, with the process put back as it was."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from aitune.torch.backend import Backend, Engine
from aitune.torch.check.trace import calm
from aitune.torch.graph.job import Job
from aitune.torch.worker.quiet import process_state_kept

__all__ = ["Built", "build_here", "load_here"]


@dataclass(frozen=True)
class Built:
    """What came of a build.

    Attributes:
        engine: The engine, None if the build failed.
        error: What the builder raised, None if it built.
        seconds: How long it took.
        memory_bytes: By how much the process's resident memory grew.
    """

    engine: Engine | None
    error: Exception | None
    seconds: float
    memory_bytes: int


def build_here(backend: Backend[Any], job: Job, *, redirect: bool = True) -> Built:
    """Build ``backend`` for ``job`` in this process; a failing builder is an answer, never an exception.

    Global state of the process is put back afterwards, and the builder's output goes to the job's log.
    ``KeyboardInterrupt`` and ``SystemExit`` pass, with the process state restored.

    Args:
        backend: The recipe.
        job: What to build.
        redirect: Whether output is sent to the log here; without, it goes where the process prints.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    return _made(lambda: backend.build(job), job, job.log if redirect else None)


def load_here(backend: Backend[Any], job: Job) -> Built:
    """Make an engine in this process of what lies in the job's folder; otherwise as :func:`build_here`."""
    return _made(lambda: backend.load(job, job.folder), job, job.log)


def _mode_for(module: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return the mode to build in: the calm one, but for a module made in inference mode, which exports there alone."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return torch.inference_mode() if any(tensor.is_inference() for tensor in tensors) else calm()


def _made(make: Callable[[], Engine], job: Job, log: Path | None) -> Built:
    process = psutil.Process()
    before = process.memory_info().rss
    start = time.perf_counter()
    engine, error = None, None
    try:
        with process_state_kept(log), _mode_for(job.module):
            made = make()
        if isinstance(made, Engine):
            engine = made
        else:
            error = TypeError(f"it returned {type(made).__name__}, and has to return an Engine")
    except Exception as raised:  # noqa: BLE001 - foreign builders raise anything
        error = raised
    seconds = time.perf_counter() - start
    return Built(engine, error, seconds, max(0, process.memory_info().rss - before))
