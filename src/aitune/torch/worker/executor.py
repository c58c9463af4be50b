"""The executor interface: a build is asked for and comes back as an engine or an exception."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from aitune.torch.backend import Backend, Engine
from aitune.torch.graph.job import Job
from aitune.torch.worker.quiet import process_state_kept

__all__ = ["Built", "Executor", "InProcessExecutor"]


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


class Executor(ABC):
    """Where builds happen. One build at a time."""

    @abstractmethod
    def build(self, backend: Backend[Any], job: Job) -> Built:
        """Build ``backend`` for ``job``; a failing builder is an answer, never an exception.

        ``KeyboardInterrupt`` and ``SystemExit`` pass, with the process state restored.
        """


class InProcessExecutor(Executor):
    """Builds in this process, with its global state put back afterwards and the builder's output in the job's log."""

    def build(self, backend: Backend[Any], job: Job) -> Built:
        """Build here and now; see :meth:`Executor.build`."""
        process = psutil.Process()
        before = process.memory_info().rss
        start = time.perf_counter()
        engine, error = None, None
        job.folder.mkdir(parents=True, exist_ok=True)
        try:
            with process_state_kept(job.log), torch.no_grad():
                engine = backend.build(job)
        except Exception as raised:  # noqa: BLE001 - foreign builders raise anything
            error = raised
        seconds = time.perf_counter() - start
        return Built(engine, error, seconds, max(0, process.memory_info().rss - before))
