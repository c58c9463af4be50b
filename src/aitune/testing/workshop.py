"""The workshop of a contract suite: one backend, its engines for the cases, each built once and closed at the end."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import BackendNotInstalledError, BackendUnsupportedError
from aitune.testing.answers import mismatch
from aitune.testing.cases import Case
from aitune.testing.surroundings import Surroundings
from aitune.torch.backend import Backend, Engine
from aitune.torch.bench import unusable
from aitune.torch.graph.job import Job
from aitune.torch.worker import (
    Assignment,
    Attempt,
    BuildFolders,
    Executor,
    Outcome,
    ProcessExecutor,
)
from aitune.torch.worker.quiet import process_state_kept

__all__ = ["Workshop", "skip"]


@dataclass(frozen=True, eq=False)
class Made:
    """An engine with what its build left behind.

    Attributes:
        engine: The engine.
        traces: What the build changed or printed and should not have, each thing in a few words.
    """

    engine: Engine
    traces: tuple[str, ...]


class Workshop:
    """Builds engines of one backend as aitune does.

    What cannot be built for a reason that is no fault (a library or a device is missing, the backend says that it does
    not serve the case) is a skipped test with that reason.

    Args:
        backend: The backend.
        device: Where modules are.
        contained: Whether engines are built, checked and saved in a worker process first, and loaded here from what it
            saved; those that cannot be kept are rehearsed there, and built again here.
    """

    def __init__(self, backend: Backend[Any], device: str = "cpu", *, contained: bool = False) -> None:
        self.backend = backend
        self.device = device
        self._contained = contained
        self._folder = tempfile.TemporaryDirectory(prefix="aitune-testing-")
        self._jobs: dict[str, Job] = {}
        self._made: dict[str, Made | unittest.SkipTest] = {}
        self._folders = 0
        self._executor: Executor | None = None

    def job(self, case: Case) -> Job:
        """Return the job of a case, recorded at the first call."""
        self._need_device()
        if case.name not in self._jobs:
            self._jobs[case.name] = case.job(self.folder(), self.device)
        return self._jobs[case.name]

    def engine(self, case: Case) -> Engine:
        """Return the engine of a case; see :meth:`made`."""
        return self.made(case).engine

    def made(self, case: Case) -> Made:
        """Return the engine of a case, built at the first call.

        Raises:
            unittest.SkipTest: If it cannot be had here.
            Exception: What the builder raises.
        """
        if case.name not in self._made:
            try:
                self._made[case.name] = self._make(self.job(case))
            except unittest.SkipTest as reason:
                self._made[case.name] = reason
        found = self._made[case.name]
        if isinstance(found, unittest.SkipTest):
            raise unittest.SkipTest(*found.args)
        return found

    def build(self, job: Job) -> Engine:
        """Build an engine that the caller closes; raises as :meth:`engine` does."""
        reason = unusable(self.backend, job.device) or self.backend.unsuitable(job)
        if reason is not None:
            raise skip(self.backend, reason)
        with self._refusals_skip():
            outcome = self._try_in_worker(job) if self._contained else Outcome()
            if outcome.error is not None:
                raise outcome.error
            if not outcome.saved:
                # Not as a tune does, which puts the module back and refuses odd engines: both are to be found.
                with process_state_kept(job.log), torch.no_grad():
                    return self.backend.build(job)
        with process_state_kept(job.log), torch.no_grad():
            return self.backend.load(job, job.folder)

    def folder(self) -> Path:
        """Return a new folder, removed when the workshop closes."""
        self._folders += 1
        folder = Path(self._folder.name, str(self._folders))
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Close every engine and remove every file."""
        for made in self._made.values():
            if isinstance(made, Made):
                made.engine.close()
        self._made.clear()
        self._jobs.clear()
        if self._executor is not None:
            self._executor.close()
        self._folder.cleanup()

    def _try_in_worker(self, job: Job) -> Outcome:
        """Take a job as far as a worker takes it."""
        if self._executor is None:
            self._executor = ProcessExecutor(BuildFolders(self.folder()))
        with self._executor.workplace(Assignment(job=job, workload=job.samples)) as place:
            return place.attempt(Attempt(backend=self.backend, folder=job.folder, log=job.log))

    @contextlib.contextmanager
    def _refusals_skip(self) -> Iterator[None]:
        """Skip the test where a build ends in a reason that is no fault."""
        try:
            yield
        except (BackendNotInstalledError, BackendUnsupportedError) as error:
            raise skip(self.backend, error.reason) from error

    def _make(self, job: Job) -> Made:
        samples = [sample.fresh() for sample in job.samples]
        log = self.folder() / "printed"
        before = Surroundings.capture(job.module)
        with _streams_to(log):
            engine = self.build(job)
        traces = before.changes()
        if any(mismatch(sample, kept, 0.0) for sample, kept in zip(job.samples, samples, strict=True)):
            traces.append("a sample")
        printed = log.read_text(encoding="utf-8", errors="replace")
        if printed:
            traces.append(f"standard output: {printed[:300]!r}")
        return Made(engine, tuple(traces))

    def _need_device(self) -> None:
        kind = torch.device(self.device).type
        there = kind == "cpu" or getattr(getattr(torch, kind, None), "is_available", lambda: False)()
        if not there:
            raise skip(self.backend, f"there is no {kind} device")


@contextlib.contextmanager
def _streams_to(file: Path) -> Iterator[None]:
    """Send what is written to the file descriptors of standard output and error to a file, native code's included."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        with file.open("wb") as sink:
            for number, _ in kept:
                os.dup2(sink.fileno(), number)
            yield
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def skip(backend: Backend[Any], reason: str) -> unittest.SkipTest:
    """Return what skips a test; pytest and unittest understand it alike."""
    return unittest.SkipTest(f"{backend.name}: {reason}")
