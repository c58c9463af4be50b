"""The trying out of candidates in a worker: build, check, first measurement, saving."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import (
    FOREIGN,
    BackendBuildError,
    BackendUnsupportedError,
    CorrectnessError,
    NotCarriedError,
    text_of,
)
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.guarded import close_engine, described
from aitune.torch.check import Check, Effort, Judgement, OutputWatch, Reference, Subject, judge, no_trace, prepare
from aitune.torch.graph.sample import Sample
from aitune.torch.measure import PairedTiming, Stopwatch, compare
from aitune.torch.worker import cargo
from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.attempt import Attempt, Outcome
from aitune.torch.worker.in_process import build_here
from aitune.torch.worker.printing import show
from aitune.torch.worker.process_tree import private_bytes
from aitune.torch.worker.quiet import process_state_kept

__all__ = ["Tryout"]

_SCRATCH = "build"
_WORN_BYTES = 1 << 30


class Tryout:
    """Tries candidates for one assignment, in the process that it is in.

    Args:
        assignment: What candidates are tried for.
        folder: Where the reference is kept for those that come after.
        stage: Told what is being done.
    """

    def __init__(self, assignment: Assignment, folder: Path, stage: Callable[[str], None]) -> None:
        self._assignment = assignment
        self._folder = folder
        self._stage = stage
        self._subject: Subject | None = None
        self._at_start = _memory(assignment.job.device)

    @property
    def worn(self) -> bool:
        """Whether attempts have left much memory of host or device taken, or the device unusable in this process."""
        device = self._assignment.job.device
        try:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            now = _memory(device)
        except RuntimeError:  # a fault on the device stays with the process
            return True
        return any(taken > before + _WORN_BYTES for taken, before in zip(now, self._at_start, strict=True))

    def make_reference(self, seconds: float | None) -> None:
        """Run the module and its copy in higher precision, once; what it gives is kept in the folder.

        Args:
            seconds: Time for the copy; None for no limit.

        Raises:
            NotCarriedError: If the module does not run here.
        """
        if self._subject is not None or not self._assignment.correctness:
            return
        self._stage("reference")
        assignment, job = self._assignment, self._assignment.job
        known = cargo.kept_reference(self._folder)
        check = Check(max_error=assignment.max_error) if assignment.max_error is not None else None
        reference = True if known is None else known
        effort = Effort(reference=reference, reference_seconds=seconds, aside=True, seed=assignment.seed)
        try:
            self._subject = prepare(job.module, job.graph, job.samples, forward=job.forward, check=check, effort=effort)
        except MemoryError:
            raise
        except Exception as error:
            show(error)
            text = text_of(error)
            raise NotCarriedError(f"{job.name} does not run in a worker process: {text}") from error
        self._at_start = _memory(job.device)  # what is kept to compare with is no loss
        if known is None:
            # Not being able to keep it costs the next worker time, no more.
            with contextlib.suppress(OSError, RuntimeError):
                cargo.keep_reference(self._with_own_answers(self._subject), self._folder)

    def _with_own_answers(self, subject: Subject) -> Reference:
        """Return the reference with what the module itself did here on the recorded samples."""
        steps = subject.steps[: len(self._assignment.job.samples)]
        return replace(subject.reference, own=tuple(step.expectation.eager for step in steps if step.probe.recorded))

    def attempt(self, attempt: Attempt, built: Callable[[], None] = lambda: None) -> Outcome:
        """Carry an attempt out; a failure of any kind is an outcome with an error.

        Args:
            attempt: The attempt.
            built: Called between the build and what must not be disturbed by other work.
        """
        started = time.perf_counter()
        try:
            with process_state_kept(None), self._device_limit(attempt):
                outcome = self._attempt(attempt, built)
        except Exception as error:  # noqa: BLE001 - foreign builders and engines raise anything
            show(error)
            outcome = Outcome(error=error)
        except BaseException as error:  # noqa: BLE001 - in a worker, sys.exit() of a builder is a failure like any other
            show(error)
            text = f"it raised {text_of(error)}"
            outcome = Outcome(error=BackendBuildError(described(attempt.backend), text))
        finally:
            shutil.rmtree(attempt.folder / _SCRATCH, ignore_errors=True)
            self._tidy()
        return replace(outcome, seconds=time.perf_counter() - started)

    def _attempt(self, attempt: Attempt, when_built: Callable[[], None]) -> Outcome:
        backend = attempt.backend
        self.make_reference(None)
        job = replace(self._assignment.job, folder=attempt.folder / _SCRATCH, log=attempt.log)
        self._stage("build")
        built = build_here(backend, job, redirect=False)
        outcome = Outcome(error=built.error, build_seconds=built.seconds, memory_bytes=built.memory_bytes)
        engine = built.engine
        if engine is None:
            if built.error is not None:
                show(built.error)
            return outcome
        try:
            outcome = replace(outcome, precision=engine.precision)
            when_built()
            return self._prove(attempt, engine, outcome)
        finally:
            close_engine(engine)

    def _prove(self, attempt: Attempt, engine: Engine, outcome: Outcome) -> Outcome:
        """Check, measure and save an engine."""
        backend, graph = attempt.backend, self._assignment.job.graph
        calls = tuple(one for one in self._assignment.workload if graph.lies_within(one, engine.ranges))
        if not calls:
            text = "; ".join(engine.notes) or f"only {dict(engine.ranges)}"
            text = f"no call that is measured is among those that it serves: {text}"
            return replace(outcome, error=BackendUnsupportedError(described(backend), text))
        subject, watch = self._subject_of(engine), None
        if subject is not None:
            self._stage("check")
            judgement = judge(engine.run, subject, precision=engine.precision, values=self._assignment.values)
            judgement = replace(judgement, notes=(*judgement.notes, *engine.notes))
            outcome = replace(outcome, judgement=judgement)
            if not judgement.accepted:
                return replace(outcome, error=CorrectnessError(described(backend), judgement.reason))
            if self._assignment.values and attempt.profiling is not None:
                watch = OutputWatch(subject, precision=engine.precision, samples=calls)
        if attempt.profiling is not None:
            self._stage("measure")
            try:
                outcome = replace(outcome, timing=self._race(attempt, engine, calls, watch))
            except Exception as error:
                text = f"it failed while it was measured: {text_of(error)}"
                raise BackendBuildError(described(backend), text) from error
            wrong = watch.judgement() if watch is not None else None
            if wrong is not None and not wrong.accepted:
                return _rejected(outcome, backend, wrong)
        self._stage("save")
        return replace(outcome, saved=_save(backend, engine, attempt.folder))

    def _subject_of(self, engine: Engine) -> Subject | None:
        """Return the questions for an engine: those within what it serves; None where values are not checked."""
        if self._subject is None or not engine.ranges:
            return self._subject
        job = self._assignment.job.narrowed(engine.ranges)
        effort = Effort(seed=self._assignment.seed)
        check = self._subject.check
        return prepare(job.module, job.graph, job.samples, forward=job.forward, check=check, effort=effort)

    def _race(
        self, attempt: Attempt, engine: Engine, samples: Sequence[Sample], watch: OutputWatch | None
    ) -> PairedTiming:
        job = self._assignment.job
        calls = [(sample.args, dict(sample.kwargs)) for sample in (one.fresh() for one in samples)]

        def passes(call: Callable[..., Any]) -> Callable[[], list[Any]]:
            return lambda: [call(*args, **kwargs) for args, kwargs in calls]

        def observe(outputs: Any) -> None:
            assert watch is not None
            for index, output in enumerate(outputs):
                watch.observe(index, output)
            watch.pass_over()

        device = job.device
        on_cuda = device.type == "cuda"
        with no_trace(job.module):
            return compare(
                passes(engine.run),
                passes(job.module),
                stopwatch=Stopwatch(synchronize=(lambda: torch.cuda.synchronize(device)) if on_cuda else None),
                config=attempt.profiling,
                min_gain=attempt.min_gain,
                observe=observe if watch is not None else None,
            )

    @contextlib.contextmanager
    def _device_limit(self, attempt: Attempt) -> Iterator[None]:
        """Let torch's allocator take no more of the device than the limit says."""
        device, limit = self._assignment.job.device, attempt.limits.device_memory_bytes
        if device.type != "cuda" or limit is None:
            yield
            return
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)

    def _tidy(self) -> None:
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # see worn
                torch.cuda.empty_cache()


def _memory(device: torch.device) -> tuple[int, int]:
    """Return what this process has resident beyond what is mapped from files, and what is taken of the device."""
    host = private_bytes([os.getpid()])
    if device.type != "cuda":
        return host, 0
    free, total = torch.cuda.mem_get_info(device)
    return host, total - free


def _rejected(outcome: Outcome, backend: Backend[Any], judgement: Judgement) -> Outcome:
    error = CorrectnessError(described(backend), judgement.reason)
    return replace(outcome, judgement=judgement, error=error, timing=None)


def _save(backend: Backend[Any], engine: Engine, folder: Path) -> bool:
    """Save an engine where it can be kept and loaded again; return whether it was."""
    if type(engine).save is Engine.save or type(backend).load is Backend.load:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        engine.save(folder)
    except NotImplementedError:
        return False
    except FOREIGN as error:  # an engine that cannot be saved is built again by whoever wants it
        show(error)
        return False
    return True
