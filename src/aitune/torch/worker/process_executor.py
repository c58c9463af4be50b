"""The executor that tries candidates in a worker process of this machine."""

from __future__ import annotations

import logging
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import psutil

from aitune.exceptions import (
    FOREIGN,
    BackendBuildError,
    BackendCrashedError,
    BackendError,
    BackendMemoryError,
    BackendNotInstalledError,
    BackendTimeoutError,
    BackendUnsupportedError,
    CorrectnessError,
    NotCarriedError,
    text_of,
)
from aitune.torch.backend.guarded import described
from aitune.torch.check import Reference
from aitune.torch.check.ambient import Ambient
from aitune.torch.worker import cargo
from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.attempt import Attempt, Outcome
from aitune.torch.worker.executor import Executor, Workplace
from aitune.torch.worker.folders import BuildFolders
from aitune.torch.worker.gate import Gate
from aitune.torch.worker.messages import Answer, Bring, Failure, MakeReference, Release, Try
from aitune.torch.worker.module_files import files_by_name
from aitune.torch.worker.worker_process import LostError, WorkerProcess, hindrance

__all__ = ["ProcessExecutor"]

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0
_TICK = 0.1
_CARRY_SECONDS = 600.0
_RELEASE_SECONDS = 5.0
_BEFORE_A_BUILD = ("starting", "taking the request", "reference")


class ProcessExecutor(Executor):
    """Tries candidates in a worker: a fresh interpreter of this machine, below a guard that contains it.

    A worker is kept from candidate to candidate and from graph to graph, and replaced after every failure but a
    refusal: what failed half-way may have left anything behind. Not for several threads at once.

    Args:
        folders: Where assignments travel through.
        parallel: How many workers may build at once, of those that are tried by :meth:`Workplace.attempts`.
    """

    def __init__(self, folders: BuildFolders, parallel: int = 1) -> None:
        self._folders = folders
        self._worker: WorkerProcess | None = None
        self.parallel = parallel
        self._others = [ProcessExecutor(folders) for _ in range(parallel - 1)]

    @staticmethod
    def hindrance() -> str | None:
        """Return why this process can have no workers, None if it can: a frozen application has no interpreter."""
        return hindrance()

    def open(self) -> None:
        """Start the worker, without waiting until it is ready."""
        try:
            self.worker()
        except LostError as error:
            _log.debug("%s", error.reason)  # said again, and as an exception, when a graph is brought

    def workplace(self, assignment: Assignment, seconds: float | None = None) -> Workplace:
        """Bring a graph to the worker; see :meth:`Executor.workplace`."""
        name = assignment.job.name, assignment.job.graph.name
        until = None if seconds is None else time.monotonic() + seconds
        place = ProcessWorkplace(self, assignment, self._folders.new(*name, "assignment")[0], self._others, until)
        try:
            place.bring()
        except BaseException:
            place.close()
            raise
        return place

    def close(self) -> None:
        """End every process that was started; calling it twice is allowed."""
        self.drop()
        for other in self._others:
            other.close()

    @property
    def started(self) -> WorkerProcess | None:
        """The worker, None if there is none."""
        return self._worker if self._worker is not None and self._worker.alive else None

    def worker(self) -> WorkerProcess:
        """Return the worker, started now if there is none."""
        worker = self.started
        if worker is None:
            worker = self._worker = WorkerProcess()
        return worker

    def drop(self) -> None:
        """End the worker, if there is one; the next request starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class ProcessWorkplace(Workplace):
    """One graph, at the worker of an executor.

    Args:
        executor: Has the worker.
        assignment: The graph.
        folder: A folder of the assignment's own, through which it travels.
        others: Executors of workers that build at the same time.
        until: When no worker is waited for any more that gets ready or reads the assignment; None for no limit.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        assignment: Assignment,
        folder: Path,
        others: Sequence[ProcessExecutor] = (),
        until: float | None = None,
    ) -> None:
        self._executor = executor
        self._others = tuple(others)
        self._assignment = assignment
        self._folder = folder
        self._until = until
        self._files: dict[str, str] = {}
        self._reference: Reference | None = None

    def bring(self) -> None:
        """Pack the assignment, and have a worker take it up.

        Raises:
            NotCarriedError: If that cannot be done.
        """
        self._executor.open()
        self._files = files_by_name()
        cargo.pack(self._assignment, self._folder)
        try:
            self._worker()
        except LostError as error:
            self._executor.drop()
            raise NotCarriedError(f"{self._assignment.job.name}: {error.reason}") from error
        except NotCarriedError as error:
            cargo.pack_program(self._assignment, self._folder, f"a worker cannot read it ({error.message})")
            try:
                self._worker()
            except LostError as lost:
                self._executor.drop()
                raise NotCarriedError(f"{self._assignment.job.name}: {lost.reason}") from lost

    def reference(self, seconds: float | None = None) -> Reference:
        """Return what the module computes in a higher precision; see :meth:`Workplace.reference`."""
        if self._reference is not None:
            return self._reference
        if not self._assignment.correctness:
            return _eager_because("values are not checked")
        try:
            self._reference = self._make_reference(seconds)
        except BaseException:  # Ctrl-C: it is not known any more what the worker does
            self._executor.drop()
            raise
        return self._reference

    def _make_reference(self, seconds: float | None) -> Reference:
        until = None if seconds is None else time.monotonic() + seconds
        reason = ""
        try:
            worker = self._worker()
            left = None if until is None else max(0.0, until - time.monotonic())
            answer = worker.ask(MakeReference(left), None if left is None else left + _GRACE_SECONDS)
            reason = answer.failure.text if answer.failure is not None else ""
        except LostError as error:
            self._replace()
            reason = "the time for it was over" if error.kind == "time" else f"making it failed: {error.reason}"
        except NotCarriedError as error:
            reason = error.message
        largest = psutil.virtual_memory().available // 4
        found = None if reason else cargo.kept_reference(self._folder, largest)
        if found is not None:
            return found
        instead = _eager_because(reason or "it could not be kept")
        self._keep_for_others(instead)
        return instead

    def attempt(self, attempt: Attempt) -> Outcome:
        """Build, check and measure a candidate in the worker; see :meth:`Workplace.attempt`."""
        try:
            return self._attempt_twice(attempt)
        except BaseException:  # Ctrl-C: it is not known any more what the worker does
            self._executor.drop()
            raise

    def attempts(self, attempts: Sequence[Attempt]) -> Iterator[Outcome]:
        """Carry out several attempts, whose builds overlap; see :meth:`Workplace.attempts`."""
        seats = [self, *(self._seat(other) for other in self._others)]
        for first in range(0, len(attempts), len(seats)):
            batch = attempts[first : first + len(seats)]
            if len(batch) == 1:
                yield self.attempt(batch[0])
                continue
            self.reference(batch[0].limits.seconds)  # once, instead of in every worker
            yield from self._side_by_side(list(zip(seats, batch, strict=False)))

    def _seat(self, executor: ProcessExecutor) -> ProcessWorkplace:
        """Return a place at another worker, for the same graph."""
        seat = ProcessWorkplace(executor, self._assignment, self._folder, until=self._until)
        seat._files, seat._reference = self._files, self._reference
        return seat

    def _side_by_side(self, seated: list[tuple[ProcessWorkplace, Attempt]]) -> list[Outcome]:
        """Carry out one attempt at each place; those that ran out of memory are tried once more, alone."""
        gate = Gate(len(seated))
        try:
            with ThreadPoolExecutor(len(seated), "aitune-builds") as threads:
                running = [threads.submit(seat._attempt_at, gate, attempt) for seat, attempt in seated]
                try:
                    while wait(running, _TICK).not_done:  # without a time, a signal may not be seen while waiting
                        pass
                    outcomes = [future.result() for future in running]
                except BaseException:  # Ctrl-C: the threads are not waited for longer than their workers take to end
                    gate.close()
                    for seat, _ in seated:
                        if (worker := seat._executor.started) is not None:
                            worker.interrupt()
                    raise
        except BaseException:
            for seat, _ in seated:
                seat._executor.drop()
            raise
        return [
            self.attempt(attempt) if isinstance(outcome.error, MemoryError) else outcome
            for outcome, (_, attempt) in zip(outcomes, seated, strict=True)
        ]

    def _attempt_at(self, gate: Gate, attempt: Attempt) -> Outcome:
        started, passed = time.monotonic(), False

        def turn() -> None:
            nonlocal passed
            gate.pass_through()
            passed = True

        try:
            outcome = self._attempt(attempt, attempt.limits.seconds, turn)
        finally:
            gate.leave(passed=passed)
        return replace(outcome, seconds=time.monotonic() - started)

    def _attempt_twice(self, attempt: Attempt) -> Outcome:
        started = time.monotonic()
        worker = self._executor.started
        used = worker is not None and worker.used
        outcome = self._attempt(attempt, attempt.limits.seconds)
        # Wrong may be what a candidate before it left behind: a function of torch's in another one's place.
        if isinstance(outcome.error, MemoryError) or (used and isinstance(outcome.error, CorrectnessError)):
            outcome = self._once_more(attempt, outcome, started)
        return replace(outcome, seconds=time.monotonic() - started)

    def close(self) -> None:
        """Let go of the graph, and remove what it travelled in."""
        for executor in (self._executor, *self._others):
            worker = executor.started
            if worker is not None and worker.holder == self._folder:
                worker.holder = None
                try:
                    worker.ask(Release(), _RELEASE_SECONDS)
                except LostError:
                    executor.drop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _worker(self) -> WorkerProcess:
        """Return a worker that has the assignment; one that ended while nobody asked it for anything is replaced.

        Raises:
            LostError: If there is none to be had.
            NotCarriedError: If it cannot read the assignment.
        """
        try:
            worker = self._executor.worker()
            worker.look()
            return self._with_assignment(worker)
        except LostError as error:
            if error.kind == "time":
                raise
            _log.debug("another worker is started: %s", error.reason)
            return self._with_assignment(self._executor.worker())

    def _with_assignment(self, worker: WorkerProcess) -> WorkerProcess:
        if worker.holder != self._folder:
            worker.holder = None
            left = _CARRY_SECONDS if self._until is None else min(self._until - time.monotonic(), _CARRY_SECONDS)
            if left <= 0:
                raise LostError("time", "the time for bringing the module there was over")
            bring = Bring(cargo=self._folder, files=self._files, ambient=Ambient.capture())
            answer = worker.ask(bring, left)
            if answer.failure is not None:
                raise NotCarriedError(f"{answer.failure.kind}: {answer.failure.text}")
            worker.holder = self._folder
        return worker

    def _attempt(self, attempt: Attempt, seconds: float | None, turn: Callable[[], None] | None = None) -> Outcome:
        name = described(attempt.backend)
        try:
            worker = self._worker()
        except (LostError, NotCarriedError) as error:
            self._executor.drop()
            lost = BackendCrashedError(name, f"there is no worker for it: {error}")
            begun = not (isinstance(error, LostError) and error.kind == "time")
            return Outcome(error=lost, begun=begun, of_the_moment=True)
        try:
            with cargo.definitions_travel():
                data: bytes = cloudpickle.dumps(attempt)
        except FOREIGN as error:  # a backend may hold anything
            return Outcome(error=BackendBuildError(name, f"the backend does not pickle: {text_of(error)}"))
        try:
            worker.used = True
            worker.begin(attempt.log, attempt.limits.memory_bytes)
            answer = worker.ask(Try(data, in_turn=turn is not None), seconds, turn)
            left = worker.finish()
        except LostError as error:
            self._replace()
            shutil.rmtree(attempt.folder, ignore_errors=True)
            begun = error.kind != "time" or worker.stage not in _BEFORE_A_BUILD
            return Outcome(error=_as_backend_error(error, name, worker.stage, seconds), begun=begun)
        outcome = _outcome(answer, name)
        refused = isinstance(outcome.error, (BackendUnsupportedError, BackendNotInstalledError))
        if (outcome.error is not None and not refused) or left or answer.worn:
            self._replace()
        return outcome

    def _once_more(self, attempt: Attempt, outcome: Outcome, started: float) -> Outcome:
        """Try a candidate again, in a fresh worker that was asked for nothing else."""
        seconds = attempt.limits.seconds
        left = None if seconds is None else seconds - (time.monotonic() - started)
        if left is not None and left <= 0:
            return outcome
        shutil.rmtree(attempt.folder, ignore_errors=True)
        return self._attempt(attempt, left)

    def _replace(self) -> None:
        """Have the next request met by a fresh worker, which gets ready from now on."""
        self._executor.drop()
        self._executor.open()

    def _keep_for_others(self, reference: Reference) -> None:
        """Spare the workers to come a reference that cannot be had."""
        try:
            cargo.keep_reference(reference, self._folder)
        except (OSError, RuntimeError) as error:
            _log.debug("the reference of %s was not kept: %s", self._assignment.job.name, error)


def _eager_because(reason: str) -> Reference:
    """Return the reference that stands for the module's own answers, whatever is asked."""
    return Reference("eager", reason, ())


def _as_backend_error(error: LostError, name: str, stage: str, seconds: float | None) -> BackendError:
    """Turn the loss of a worker into what is said of the candidate."""
    if error.kind == "time":
        return BackendTimeoutError(name, f"it was ended in stage '{stage}' at its limit of {seconds:g} s", seconds or 0)
    if error.kind == "memory":
        return BackendMemoryError(name, f"{error.reason}; it was ended in stage '{stage}'")
    return BackendCrashedError(name, f"in stage '{stage}', {error.reason}", error.signal)


def _outcome(answer: Answer, name: str) -> Outcome:
    outcome = answer.outcome or Outcome()
    failure = answer.failure
    if failure is None:
        return outcome
    return replace(outcome, error=_exception(failure, name), of_the_moment=failure.of_the_moment)


def _exception(failure: Failure, name: str) -> Exception:
    """Return the exception that a worker described, itself where this process can make it without new imports."""
    original: Any = None
    if failure.pickled is not None and failure.module in sys.modules:
        try:
            original = pickle.loads(failure.pickled)
        except Exception:  # noqa: BLE001 - of foreign exceptions, many pickle and do not unpickle
            original = None
    text = f"{failure.kind}: {failure.text}"
    if failure.out_of_memory and not isinstance(original, BackendMemoryError):
        made: Exception = BackendMemoryError(name, text)
        made.__cause__ = original if isinstance(original, Exception) else None
        return made
    return original if isinstance(original, Exception) else BackendBuildError(name, text)
