"""A build in this process, with the process put back as it was."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from aitune.exceptions import BackendBuildError, text_of
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.guarded import close_engine, described, flaw
from aitune.torch.backend.resident import return_freed
from aitune.torch.check import no_trace
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

    What the module holds and the global state of the process are put back afterwards. The builder's output goes to the
    job's log.
    ``KeyboardInterrupt`` passes, with the process state restored.

    Args:
        backend: The recipe.
        job: What to build.
        redirect: Whether output is sent to the log here; without, it goes where the process prints.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    return _made(backend, job, lambda: backend.build(job), job.log if redirect else None)


def load_here(backend: Backend[Any], job: Job) -> Built:
    """Make an engine in this process of what lies in the job's folder; otherwise as :func:`build_here`."""
    return _made(backend, job, lambda: backend.load(job, job.folder), job.log)


def _made(backend: Backend[Any], job: Job, make: Callable[[], Engine], log: Path | None) -> Built:
    """Make an engine, with the module put back as it was; refused is one that changed what cannot be put back."""
    lost: list[str] = []
    with no_trace(job.module, lost.extend):
        built = _made_freely(backend, job, make, log)
    return_freed()  # what the module was copied into
    if not lost:
        return built
    if built.engine is not None:
        close_engine(built.engine)
    changed = f"its build changed the module, which was too large to be copied before: {', '.join(lost)}"
    return replace(built, engine=None, error=BackendBuildError(described(backend), changed))


def _mode_for(module: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return the mode to build in: as it is, but for a module made in inference mode, which exports there alone."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return torch.inference_mode() if any(tensor.is_inference() for tensor in tensors) else contextlib.nullcontext()


def _made_freely(backend: Backend[Any], job: Job, make: Callable[[], Engine], log: Path | None) -> Built:
    process = psutil.Process()
    before = process.memory_info().rss
    start = time.perf_counter()
    engine: Engine | None = None
    error: Exception | None = None
    try:
        with process_state_kept(log), _mode_for(job.module):
            engine = _checked(make(), backend, job)
    except Exception as raised:  # noqa: BLE001 - foreign builders raise anything
        error = raised
    except SystemExit as raised:
        error = BackendBuildError(described(backend), f"it raised {text_of(raised)}")
    seconds = time.perf_counter() - start
    return Built(engine, error, seconds, max(0, process.memory_info().rss - before))


def _checked(made: object, backend: Backend[Any], job: Job) -> Engine:
    """Return what a builder made, if it is an engine that says of itself what can be.

    Raises:
        BackendBuildError: If it is not; it is closed then.
    """
    if not isinstance(made, Engine):
        raise BackendBuildError(described(backend), f"it returned {type(made).__name__}, and has to return an Engine")
    try:
        problem = flaw(made, job.graph)
    except BaseException:
        close_engine(made)
        raise
    if problem is not None:
        close_engine(made)
        raise BackendBuildError(described(backend), f"its engine's {problem}")
    return made
