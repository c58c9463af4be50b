"""The gate: candidates are tried in a worker, and let into this process only if they can still win."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from aitune.exceptions import (
    BackendBuildError,
    BackendCrashedError,
    BackendError,
    BackendMemoryError,
    BackendTimeoutError,
    NotCarriedError,
    said,
)
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.circumstance import is_of_the_moment
from aitune.torch.backend.guarded import described
from aitune.torch.bench.budget import Budget
from aitune.torch.bench.failure import failed_trial, log_path
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.shelf import Known
from aitune.torch.bench.workload import Workload
from aitune.torch.check import Judgement, Reference
from aitune.torch.graph.job import Job
from aitune.torch.measure import PairedTiming
from aitune.torch.trial import Trial, Verdict
from aitune.torch.worker import (
    Assignment,
    Attempt,
    Built,
    Executor,
    Limits,
    Outcome,
    Workplace,
    build_here,
    load_here,
    remove_files,
)

__all__ = ["Admission", "Gate"]

_log = logging.getLogger(__name__)

_LONGEST_LOOK = 10.0
"""Seconds for the first measurement in a worker: it only sorts out what cannot win."""

_CLEARLY = 1.1
"""How many times slower than the best so far a candidate must be in the worker to be left there. Two processes are
compared, so that a tenth is kept for what differs between them."""


_SHARE_OF_REFERENCE = 1 / 3
"""Of the time that is left, for the module in higher precision; then its own outputs are what is compared with."""


@dataclass(frozen=True)
class Admission:
    """What became of a candidate at the gate.

    Attributes:
        trial: Its record so far; not accepted where it was turned away.
        engine: Its engine in this process, None where it was turned away.
        error: Why it was turned away, as an exception.
        judged: Whether its values passed the whole examination elsewhere, in the very form in which it is here.
        known: Whether they did in an earlier tune.
        timing: Figures from elsewhere of a candidate that was turned away.
        lasts: Whether what was found says something of the candidate, and not of the machine at that moment.
    """

    trial: Trial
    engine: Engine | None = None
    error: Exception | None = None
    judged: bool = False
    known: bool = False
    timing: PairedTiming | None = None
    lasts: bool = True


@dataclass(eq=False)
class Gate:
    """Lets candidates of one graph into this process. A context manager: leaving it ends the work elsewhere.

    Attributes:
        job: The graph.
        rules: What a candidate must show.
        workload: The calls that it is measured with.
        budget: The time there is.
        executor: Where candidates are tried first; None builds all of them in this process.
        limits: What each may take there.
        seed: Seeds synthesised inputs.
    """

    job: Job
    rules: Rules
    workload: Workload
    budget: Budget
    executor: Executor | None = None
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    _ahead: dict[int, tuple[Job, Outcome]] = field(default_factory=dict)

    def build_ahead(self, wanted: Sequence[tuple[Backend[Any], Job]]) -> list[Backend[Any]]:
        """Try several candidates elsewhere at once; what comes of it is kept until each is to be admitted.

        Returns:
            Those that were ended because others wait for them; alone they have the time that is left.
        """
        place = self._place
        if self.executor is None or not isinstance(place, Workplace):
            return []
        if self.rules.correctness:
            self._reference_at(place)
        unfinished: list[Backend[Any]] = []
        size = self.executor.parallel
        for first in range(0, len(wanted), size):
            if self.budget.over() is not None:
                break
            batch = wanted[first : first + size]
            seconds, shared = self._share(rounds=-(-(len(wanted) - first) // size))
            outcomes = place.attempts([self._attempt(backend, job, seconds) for backend, job in batch])
            for (backend, job), outcome in zip(batch, outcomes, strict=True):
                if shared and isinstance(outcome.error, BackendTimeoutError):
                    unfinished.append(backend)
                else:
                    self._ahead[id(backend)] = job, outcome
        return unfinished

    def _share(self, rounds: int) -> tuple[float | None, bool]:
        """Return the seconds of each candidate of a round, and whether others' need of time makes them fewer.

        What is built waits for all others of its round before it is measured, and is brought in after the last round,
        so that as much time is kept for that as each round has.
        """
        seconds, left = self.budget.at_most(self.limits.seconds), self.budget.left()
        if seconds is None or left is None or seconds <= left / (rounds + 1):
            return seconds, False
        return left / (rounds + 1), True

    @property
    def elsewhere(self) -> bool:
        """Whether candidates are tried elsewhere first."""
        return isinstance(self._place, Workplace)

    def stay(self, reason: str) -> None:
        """Let no candidate be tried elsewhere from now on.

        Args:
            reason: Why, in one sentence.
        """
        self.close()
        self.__dict__["_place"] = NotCarriedError(reason)

    def close(self) -> None:
        """Let go of the graph elsewhere."""
        place = self.__dict__.get("_place")
        if isinstance(place, Workplace):
            place.close()

    def reference(self) -> Reference | bool:
        """Return the reference that was made elsewhere, or whether one should be made in this process."""
        if not isinstance(self._place, Workplace):
            return True
        return self._reference_at(self._place)

    def admit(self, backend: Backend[Any], job: Job, best: PairedTiming | None = None) -> Admission:
        """Try a candidate elsewhere if it is to be contained, and make its engine here if it can still win.

        Args:
            backend: The candidate.
            job: The job with the folder and log of this build.
            best: Figures of the best candidate so far, None if there is none or a slower one is wanted as well.
        """
        name = described(backend)
        place = self._place if backend.contained else None
        late = self.budget.over()
        if late is not None:
            return _never_begun(name, late)
        if isinstance(place, NotCarriedError):
            if not backend.safe_in_process:
                return _refused(failed_trial(name, place), place)
            _log.warning("%s: %s is built in this process: %s", self.job.name, name, place)
        if not isinstance(place, Workplace):
            return _made(Trial(backend=name, verdict=Verdict.accepted), build_here(backend, job), job)
        return self._tried_at(place, backend, job, best)

    def readmit(self, backend: Backend[Any], job: Job, known: Known) -> Admission:
        """Make the engine of a candidate here that passed everything in an earlier tune.

        Args:
            backend: The candidate.
            job: The job with the folder and log of this build.
            known: What is known of it.
        """
        if known.entry is None:
            return replace(_made(known.trial, build_here(backend, job), job), known=True)
        try:
            known.entry.bring_to(job.folder)
        except OSError as error:
            failed = BackendBuildError(known.trial.backend, f"its files cannot be brought from the store: {error}")
            return _refused(failed_trial(known.trial.backend, failed), failed)
        return replace(_made(known.trial, load_here(backend, job), job, judged=True), known=True)

    def _tried_at(self, place: Workplace, backend: Backend[Any], job: Job, best: PairedTiming | None) -> Admission:
        name = described(backend)
        if self.rules.correctness:
            self._reference_at(place)  # once; its time is not the candidate's
        job, outcome = self._outcome(place, backend, job)
        late = self.budget.over()
        if not outcome.begun and late is not None:
            return _never_begun(name, late)
        if isinstance(outcome.error, NotCarriedError):  # the module does not run there, whatever the candidate
            place.close()
            self.__dict__["_place"] = outcome.error
            return self.admit(backend, job, best)
        trial = _recorded(name, outcome, job)
        if outcome.error is not None:
            return _refused(trial, outcome.error, lasts=not outcome.of_the_moment)
        hopeless = self._hopeless(outcome.timing, best)
        if hopeless is not None:
            remove_files(str(job.folder))
            trial = replace(self._timed(trial, outcome.timing), verdict=Verdict.slower, reason=hopeless)
            return Admission(trial, timing=outcome.timing)
        return self._brought_in(backend, job, outcome, trial)

    def _outcome(self, place: Workplace, backend: Backend[Any], job: Job) -> tuple[Job, Outcome]:
        """Return what came of a candidate elsewhere, where it is begun now unless it was tried ahead."""
        ahead = self._ahead.pop(id(backend), None)
        if ahead is not None:
            return ahead
        if self.budget.over() is not None:
            return job, Outcome(begun=False)
        return job, place.attempt(self._attempt(backend, job, self.budget.at_most(self.limits.seconds)))

    def _brought_in(self, backend: Backend[Any], job: Job, outcome: Outcome, trial: Trial) -> Admission:
        late = self._too_late(outcome)
        if late is not None:
            return _refused(replace(trial, verdict=Verdict.timed_out, reason=late), None, lasts=False)
        if not outcome.saved:
            return _made(trial, build_here(backend, job), job)
        return _made(trial, load_here(backend, job), job, judged=self.rules.correctness)

    def _reference_at(self, place: Workplace) -> Reference:
        left = self.budget.left()
        return place.reference(self.limits.seconds if left is None else _SHARE_OF_REFERENCE * left)

    @cached_property
    def _place(self) -> Workplace | NotCarriedError | None:
        if self.executor is None:
            return None
        check = self.rules.check
        assignment = Assignment(
            job=self.job,
            workload=self.workload.samples,
            correctness=self.rules.correctness,
            max_error=check.max_error if check is not None else None,
            values=check is None or check.metric is None,
            seed=self.seed,
        )
        try:
            return self.executor.workplace(assignment, self.budget.left())
        except NotCarriedError as error:
            return error

    def _attempt(self, backend: Backend[Any], job: Job, seconds: float | None) -> Attempt:
        profiling = replace(self.rules.profiling, max_seconds=min(self.rules.profiling.max_seconds, _LONGEST_LOOK))
        return Attempt(
            backend=backend,
            folder=job.folder,
            log=job.log,
            limits=replace(self.limits, seconds=seconds),
            profiling=profiling if self.rules.latency_budget is None else None,
            min_gain=self.rules.min_speedup_ratio,
        )

    def _hopeless(self, timing: PairedTiming | None, best: PairedTiming | None) -> str | None:
        """Return why a candidate cannot win any more, as far as its first measurement tells."""
        if timing is None:
            return None
        if self.rules.performance and timing.outcome == "not_faster":
            return f"in the worker {timing.reason}"
        if self.rules.quickest and best is not None and timing.blocks and timing.high * _CLEARLY < best.low:
            return (
                f"{timing.speedup:.3g} times the original's speed in the worker, which is behind the best so far"
                f" ({best.speedup:.3g} times)"
            )
        return None

    def _timed(self, trial: Trial, timing: PairedTiming | None) -> Trial:
        if timing is None:
            return trial
        return replace(
            trial,
            speedup=timing.speedup,
            speedup_low=timing.low,
            speedup_high=timing.high,
            latency_ms=self.workload.latency(timing.candidate_seconds) * 1e3,
            throughput=self.workload.throughput(timing.candidate_seconds),
            batch_size=self.workload.batch_size,
        )

    def _too_late(self, outcome: Outcome) -> str | None:
        """Return why there is no time left to bring a candidate in."""
        over = self.budget.over()
        left = self.budget.left()
        if over is None and left is not None and not outcome.saved and outcome.build_seconds > left:
            over = f"building it here again would take {outcome.build_seconds:.3g} s, {left:.3g} s are left"
        return None if over is None else f"it works, but could not be brought in: {over}"


def _recorded(name: str, outcome: Outcome, job: Job) -> Trial:
    """Return the trial as far as the worker brought it."""
    judgement = outcome.judgement
    if outcome.error is not None:
        if isinstance(outcome.error, (BackendCrashedError, BackendMemoryError, BackendTimeoutError)):
            _add_to_log(job, outcome.error)
        trial = failed_trial(name, outcome.error, seconds=outcome.build_seconds, log=job.log)
    else:
        trial = Trial(
            backend=name,
            verdict=Verdict.accepted,
            precision=outcome.precision,
            build_seconds=outcome.build_seconds,
            memory_bytes=outcome.memory_bytes,
            log_path=log_path(job.log),
        )
    return trial if judgement is None else _with_evidence(trial, judgement)


def _with_evidence(trial: Trial, judgement: Judgement) -> Trial:
    trial = replace(trial, error=judgement.error, error_bound=judgement.bound, evidence=judgement.notes)
    return trial if judgement.accepted else replace(trial, verdict=judgement.verdict, reason=judgement.reason)


def _made(trial: Trial, built: Built, job: Job, *, judged: bool = False) -> Admission:
    """Return the admission of an engine that was made in this process."""
    if built.engine is None:
        assert built.error is not None
        error = built.error
        if trial.build_seconds is not None:
            error = BackendBuildError(trial.backend, f"it works in the worker, but cannot be made here: {said(error)}")
            error.__cause__ = built.error
        failed = failed_trial(trial.backend, error, seconds=built.seconds, log=job.log)
        return _refused(replace(trial, verdict=failed.verdict, reason=failed.reason, log_path=failed.log_path), error)
    weakref.finalize(built.engine, remove_files, str(job.folder))
    trial = replace(
        trial,
        precision=built.engine.precision,
        build_seconds=trial.build_seconds if trial.build_seconds is not None else built.seconds,
        memory_bytes=built.memory_bytes,
        log_path=log_path(job.log),
    )
    return Admission(trial, built.engine, judged=judged)


def _never_begun(name: str, late: str) -> Admission:
    return Admission(Trial(backend=name, verdict=Verdict.skipped, reason=late), lasts=False)


def _refused(trial: Trial, error: Exception | None, *, lasts: bool = True) -> Admission:
    return Admission(trial, error=error, lasts=lasts and (error is None or not is_of_the_moment(error)))


def _add_to_log(job: Job, error: BackendError) -> None:
    """Write how a worker ended below what it printed; without a log where none can be written."""
    with contextlib.suppress(OSError):
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a", encoding="utf-8", errors="replace") as log:
            log.write(f"aitune: {error}\n")
