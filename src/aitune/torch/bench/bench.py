"""The bench: takes a candidate from recipe to verdict, and owns the engines meanwhile."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendError, BackendUnsupportedError
from aitune.torch.backend import Backend, Engine
from aitune.torch.bench.contest import Entrant, winner
from aitune.torch.bench.failure import failed_trial
from aitune.torch.bench.proof import Proof
from aitune.torch.bench.resolve import Resolved, resolve
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.suitability import unusable_verdict
from aitune.torch.bench.workload import Workload
from aitune.torch.check.trace import no_trace
from aitune.torch.events import StageStarted, TrialFinished, publish
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.measure import PairedTiming, Stopwatch, compare
from aitune.torch.trial import ORIGINAL, Trial, Verdict
from aitune.torch.worker import BuildFolders, Executor, build_here, remove_files

__all__ = ["Bench", "Path", "Tools"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Path:
    """The way that a user's call takes to an engine.

    Attributes:
        call: Takes the call.
        fallbacks: Tells how many calls the original answered instead, by reason.
    """

    call: Callable[..., Any]
    fallbacks: Callable[[], Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a bench works with.

    Attributes:
        original: The call that a candidate would replace, the user's own path with hooks.
        route: Makes, of a graph and an engine, the call path that users will take; dispatch is part of what is timed.
        folders: Where builds put their files.
        executor: Where candidates are tried before this process lets them in; None builds everything in this process.
        stopwatch: How time is read.
        deadline: Reading of the stopwatch's clock after which no candidate is begun; None for none.
        seed: Seeds synthesised inputs.
    """

    original: Callable[..., Any]
    route: Callable[[GraphSpec, Engine], Path]
    folders: BuildFolders
    executor: Executor | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    deadline: float | None = None
    seed: int = 0


class Bench:
    """Runs the trials of one graph. A context manager: leaving it closes every engine that was not taken.

    Args:
        job: The graph with its samples; folder and log are replaced for each build.
        rules: What a candidate must show.
        tools: What to work with.
    """

    def __init__(self, job: Job, rules: Rules, tools: Tools) -> None:
        self._recorded = job
        self._tools = tools
        self.rules = rules
        self._entrants: dict[int, Entrant] = {}
        self._errors: dict[int, Exception] = {}
        self._trials: list[Trial] = []
        self._started = tools.stopwatch.clock.now()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_losers(keep=None)

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self._recorded.device

    @property
    def graph(self) -> GraphSpec:
        """The graph that engines serve, its batch range widened by the search for the batch size."""
        return self.job.graph

    @property
    def job(self) -> Job:
        """What is built."""
        return self._resolved.job

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial so far, in order."""
        return tuple(self._trials)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know beside the trials; empty before anything was tried."""
        resolved = self.__dict__.get("_resolved")
        proof = self.__dict__.get("_proof")
        return (*(resolved.notes if resolved else ()), *(proof.notes if proof else ()))

    def original(self) -> Trial:
        """Return the trial of leaving the graph alone. It is no candidate, so it is not among :attr:`trials`."""
        return Trial(backend=ORIGINAL, verdict=Verdict.accepted, reason="the original stays")

    def try_(self, backend: Backend[Any]) -> Trial:
        """Build, check and measure a candidate.

        Its engine stays open if it was accepted, until another one is preferred or the bench is left. Nothing of the
        module, its inputs or the process's state is different afterwards.

        Returns:
            The trial; failures of any kind are verdicts, never exceptions.
        """
        trial, error = self._attempt(backend)
        if error is not None:
            self._errors[id(trial)] = error
        self._trials.append(trial)
        publish(TrialFinished(self._recorded.name, self._recorded.graph.name, trial))
        _log.info(
            "%s %s: %s is %s%s",
            self._recorded.name,
            self._recorded.graph.name,
            trial.backend,
            trial.verdict,
            f": {trial.reason}" if trial.reason else "",
        )
        return trial

    def error(self, trial: Trial) -> Exception:
        """Return the exception behind a trial that failed."""
        return self._errors.get(id(trial)) or BackendBuildError(trial.backend, trial.reason)

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of several accepted trials, compared head to head where their figures are close."""
        entrants = [self._entrants[id(trial)] for trial in trials]
        return winner(entrants, self._race).trial

    def recipe(self, trial: Trial) -> Backend[Any] | None:
        """Return the backend behind a trial whose engine is open, None for any other."""
        entrant = self._entrants.get(id(trial))
        return None if entrant is None else entrant.backend

    def take(self, trial: Trial) -> Engine | None:
        """Hand over the engine of a trial, to be closed by the caller from now on; None for the original.

        Raises:
            ValueError: If the trial is not an accepted one of this bench whose engine is open.
        """
        if trial.backend == ORIGINAL:
            return None
        entrant = self._entrants.pop(id(trial), None)
        if entrant is None:
            raise ValueError(f"the strategy chose a trial that has no engine: {trial.backend} is {trial.verdict}")
        return entrant.engine

    def close_losers(self, keep: Trial | None) -> None:
        """Close every engine but that of one trial."""
        for key in [key for key in self._entrants if keep is None or key != id(keep)]:
            self._entrants.pop(key).engine.close()

    @cached_property
    def _resolved(self) -> Resolved:
        self._stage("", "batch size")
        return resolve(self._recorded, self.rules, self._tools.original, self._tools.stopwatch)

    @cached_property
    def _workload(self) -> Workload:
        return Workload.at(self.graph, self.job.samples, self._resolved.batch_size)

    @cached_property
    def _proof(self) -> Proof:
        self._stage("", "reference")
        return Proof.prepare(self.job, self.rules.check, self._tools.seed)

    def _stage(self, backend: str, stage: str) -> None:
        publish(StageStarted(self._recorded.name, self._recorded.graph.name, backend, stage))

    def _out_of_time(self) -> str | None:
        now = self._tools.stopwatch.clock.now()
        if self._tools.deadline is not None and now >= self._tools.deadline:
            return "the time limit of the tune was reached"
        limit = self.rules.time_limit
        if limit is not None and now >= self._started + limit:
            return f"the strategy's time limit of {limit:g} s was reached"
        return None

    def _attempt(self, backend: Backend[Any]) -> tuple[Trial, Exception | None]:
        name = backend.describe()
        late = self._out_of_time()
        if late is not None:
            return Trial(backend=name, verdict=Verdict.skipped, reason=late), None
        unusable = unusable_verdict(backend, self._recorded)
        if unusable is not None:
            return failed_trial(name, unusable), unusable
        engine: Engine | None = None
        kept = False
        try:
            job = self._job_for(backend)
            self._stage(name, "build")
            built = build_here(backend, job)
            if built.engine is None:
                assert built.error is not None
                return failed_trial(name, built.error, seconds=built.seconds, log=job.log), built.error
            engine = built.engine
            weakref.finalize(engine, remove_files, str(job.folder))
            trial = Trial(
                backend=name,
                verdict=Verdict.accepted,
                precision=engine.precision,
                build_seconds=built.seconds,
                memory_bytes=built.memory_bytes,
                log_path=str(job.log) if job.log.exists() and job.log.stat().st_size else None,
            )
            trial, error = self._prove(trial, backend, engine)
            kept = trial.accepted
            return trial, error
        finally:
            if engine is not None and not kept:
                engine.close()

    def _job_for(self, backend: Backend[Any]) -> Job:
        folder, log = self._tools.folders.new(self.job.name, self.graph.name, backend.name)
        return replace(self.job, folder=folder, log=log)

    def _prove(self, trial: Trial, backend: Backend[Any], engine: Engine) -> tuple[Trial, Exception | None]:
        """Check the engine's values and measure it; the engine is entered if it holds."""
        if self.rules.correctness:
            proof = self._proof
            self._stage(trial.backend, "check")
            trial, error = proof.judge(trial, engine)
            if error is not None:
                return trial, error
        self._stage(trial.backend, "measure")
        path = self._tools.route(self.graph, engine)
        watch = self._proof.watch(engine, self._workload) if self.rules.correctness else None
        timing = self._race(path.call, self._tools.original, watch.observe if watch is not None else None)
        unserved = _unserved(trial.backend, path.fallbacks())
        if unserved is not None:
            failed = failed_trial(trial.backend, unserved, seconds=trial.build_seconds)
            return replace(trial, verdict=failed.verdict, reason=failed.reason), unserved
        trial = self._timed(trial, timing)
        if trial.accepted and watch is not None:
            trial, error = watch.finish(trial)
            if error is not None:
                return trial, error
        if trial.accepted:
            entrant = Entrant(trial, backend, engine, path.call, timing, len(self._trials))
            self._entrants[id(trial)] = entrant
        return trial, None

    def _timed(self, trial: Trial, timing: PairedTiming) -> Trial:
        verdict, reason = trial.verdict, trial.reason
        if self.rules.performance and timing.outcome != "faster":
            verdict = Verdict.slower if timing.outcome == "not_faster" else Verdict.undecided
            reason = timing.reason
        return replace(
            trial,
            verdict=verdict,
            reason=reason,
            speedup=timing.speedup,
            speedup_low=timing.low,
            speedup_high=timing.high,
            latency_ms=self._workload.latency(timing.candidate_seconds) * 1e3,
            throughput=self._workload.throughput(timing.candidate_seconds),
            batch_size=self._workload.batch_size,
            evidence=(*trial.evidence, *(["the machine was busy while measuring"] if timing.busy else [])),
        )

    def _race(
        self,
        candidate: Callable[..., Any],
        baseline: Callable[..., Any],
        observe: Callable[[Any], None] | None = None,
    ) -> PairedTiming:
        """Time two call paths on the workload."""
        with no_trace(self.job.module), torch.no_grad():
            return compare(
                self._workload.passes(candidate),
                self._workload.passes(baseline),
                stopwatch=self._tools.stopwatch,
                config=self.rules.profiling,
                min_gain=self.rules.min_speedup_ratio,
                observe=observe,
            )


def _unserved(backend: str, fallbacks: Mapping[str, int]) -> BackendError | None:
    """Return why a candidate was not what was measured: some of its calls came back from the original."""
    if not fallbacks:
        return None
    reasons = ", ".join(f"{reason} ({count} calls)" for reason, count in fallbacks.items())
    if "engine failed" in fallbacks:
        return BackendBuildError(backend, f"it failed while it was measured: {reasons}")
    return BackendUnsupportedError(backend, f"its calls go to the original: {reasons}")
