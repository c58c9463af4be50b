"""The bench: takes a candidate from recipe to verdict, and owns the engines meanwhile."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any

import torch

from aitune.exceptions import BackendError, BackendMachineError, said
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.circumstance import is_of_the_moment
from aitune.torch.backend.guarded import answering_for, close_engine, described
from aitune.torch.backend.resident import return_freed
from aitune.torch.bench.budget import Budget
from aitune.torch.bench.contest import Entrant, winner
from aitune.torch.bench.failure import error_of, failed_trial, measured_elsewhere, refused
from aitune.torch.bench.gate import Admission, Gate
from aitune.torch.bench.latency_budget import LatencyBudget
from aitune.torch.bench.ledger import Ledger
from aitune.torch.bench.proof import Proof
from aitune.torch.bench.proofs import Proofs
from aitune.torch.bench.resolve import Resolved, at_batch_size, resolve
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.shelf import Known, Shelf, marked, saved_files
from aitune.torch.bench.suitability import unusable_verdict
from aitune.torch.bench.tools import Tools
from aitune.torch.bench.track import Track
from aitune.torch.bench.workload import Workload
from aitune.torch.check import Reference
from aitune.torch.events import StageStarted, publish
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.measure import PairedTiming
from aitune.torch.trial import ORIGINAL, Trial, Verdict

__all__ = ["Bench"]

_log = logging.getLogger(__name__)

_HOLDS = (Verdict.accepted, Verdict.slower, Verdict.undecided)
"""Verdicts of a recalled engine that say nothing against what is kept of it."""


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
        self._ledger = Ledger(job.name, job.graph.name)
        self.recalled = False
        self._hindered = False
        self._budget = Budget.starting(tools.stopwatch.clock, tools.deadline, rules.time_limit)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_losers(keep=None)
        gate = self.__dict__.get("_gate")
        if gate is not None:
            gate.close()
        return_freed(cycles=not self.recalled)

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self._recorded.device

    @property
    def graph(self) -> GraphSpec:
        """The graph that engines serve, its batch range widened by the search for the batch size."""
        return self.job.graph

    @property
    def recorded_graph(self) -> GraphSpec:
        """The graph as it was recorded; known before anything is resolved."""
        return self._recorded.graph

    @property
    def job(self) -> Job:
        """What is built."""
        return self._resolved.job

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial so far, in order."""
        return tuple(self._ledger.trials)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know beside the trials; empty before anything was tried."""
        if self.recalled:
            return ("chosen by an earlier tune; clear_cache=True tunes anew",)
        parts = [self.__dict__.get(name) for name in ("_resolved", "_proofs", "_track")]
        return tuple(note for part in parts if part is not None for note in part.notes)

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
        try:
            found = self._attempt(backend)
        except BackendError as error:
            found = failed_trial(described(backend), error), error, None
        return self._ledger.note(backend, *found)

    def skip(self, backend: Backend[Any], reason: str) -> Trial:
        """Leave a candidate out, and say why."""
        return self._ledger.note(backend, Trial(backend=described(backend), verdict=Verdict.skipped, reason=reason))

    def build_ahead(self, backends: Sequence[Backend[Any]]) -> list[Backend[Any]]:
        """Build candidates that will all be tried at once, in as many workers as the configuration allows.

        What is measured is measured alone all the same. Without effect where no two may build at once.

        Returns:
            Those that took so long that the others would have had no time left; they are best tried last.
        """
        executor = self._tools.executor
        if executor is None or executor.parallel < 2 or self._budget.over() is not None:
            return []
        wanted = [backend for backend in backends if self._is_new(backend) and backend.contained]
        if len(wanted) < 2:
            return []
        self._stage("", "builds side by side")
        return self._gate.build_ahead([(backend, self._job_for(backend)) for backend in wanted])

    def _is_new(self, backend: Backend[Any]) -> bool:
        if unusable_verdict(backend, self._recorded) is not None:
            return False
        shelf = self._tools.shelf
        return shelf is None or shelf.recall(backend, self.graph, self._tools.limits.seconds) is None

    def error(self, trial: Trial) -> Exception:
        """Return the exception behind a trial that failed."""
        return self._ledger.error(trial)

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the best of several accepted trials, compared head to head where their figures are close."""
        best = winner([self._entrants[id(trial)] for trial in trials], self._track.race_entrants)
        self._entrants[id(best.trial)] = best
        return best.trial

    @cached_property
    def latency_budget(self) -> LatencyBudget | None:
        """The latency budget that candidates are held to, None without one."""
        if self.rules.latency_budget is None:
            return None
        return LatencyBudget(self.job, self.rules, self._tools.original, self._tools.stopwatch)

    def recipe(self, trial: Trial) -> Backend[Any] | None:
        """Return the backend behind a chosen trial; None for the original.

        Raises:
            ValueError: As :meth:`take`.
        """
        return None if trial.backend == ORIGINAL else self._entrant(trial).backend

    def take(self, trial: Trial) -> Engine | None:
        """Hand over the engine of a trial, to be closed by the caller from now on; None for the original.

        Raises:
            ValueError: If the trial is not an accepted one of this bench whose engine is open.
        """
        if trial.backend == ORIGINAL:
            return None
        engine = self._entrant(trial).engine
        del self._entrants[id(trial)]
        return engine

    def _entrant(self, trial: Trial) -> Entrant:
        entrant = self._entrants.get(id(trial))
        if entrant is None:
            raise ValueError(f"the strategy chose a trial that has no engine: {trial.backend} is {trial.verdict}")
        return entrant

    def close_losers(self, keep: Trial | None) -> None:
        """Close every engine but that of one trial."""
        for key in [key for key in self._entrants if keep is None or key != id(keep)]:
            close_engine(self._entrants.pop(key).engine)

    @cached_property
    def _resolved(self) -> Resolved:
        shelf = self._tools.shelf
        if shelf is not None and shelf.unfinished:
            return at_batch_size(self._recorded, shelf.batch_size)  # the same, or nothing that was found would apply
        self._stage("", "batch size")
        return resolve(self._recorded, self.rules, self._tools.original, self._tools.stopwatch, self._budget)

    @cached_property
    def _workload(self) -> Workload:
        if self.latency_budget is not None:
            return self.latency_budget.workload
        return Workload.at(self.graph, self.job.samples, self._resolved.batch_size)

    @cached_property
    def _track(self) -> Track:
        return Track(self.job, self.rules, self._tools, self._budget, self._workload, self.latency_budget)

    @cached_property
    def _gate(self) -> Gate:
        return Gate(
            job=self.job,
            rules=self.rules,
            workload=self._workload,
            budget=self._budget,
            executor=self._tools.executor,
            limits=self._tools.limits,
            seed=self._tools.seed,
        )

    @cached_property
    def _proofs(self) -> Proofs:
        return Proofs(self.job, self.rules.check, self._budget, self._reference, self._tools.seed)

    def _reference(self) -> Reference | bool:
        self._stage("", "reference")
        return self._gate.reference()

    def _stage(self, backend: str, stage: str) -> None:
        publish(StageStarted(self._recorded.name, self._recorded.graph.name, backend, stage))

    def choose_again(self) -> Trial | None:
        """Return what an earlier tune of the same graph with the same candidates chose, without trying the others.

        The engine is made of what is kept of it, or built again where it cannot be kept, and checked on a sample.

        Returns:
            An accepted trial or the original's; None where nothing is known, or it does not hold any more.
        """
        shelf = self._tools.shelf
        choice = shelf.choice() if shelf is not None else None
        if shelf is None or choice is None:
            return None
        self.__dict__["_resolved"] = at_batch_size(self._recorded, choice.batch_size)
        trial: Trial | None = self.original()
        if choice.backend != ORIGINAL:
            found = shelf.chosen(choice, self.graph)
            trial = self._chosen_again(*found) if found is not None else None
        if trial is None:
            for name in ("_resolved", "_workload", "_gate", "_proofs", "_track"):
                self.__dict__.pop(name, None)
            return None
        others = [marked(found.trial) for found in choice.findings if found.key != choice.key]
        self._ledger.recall([*([] if trial.backend == ORIGINAL else [trial]), *others])
        self.recalled = True
        return trial

    def finish(self, chosen: Trial) -> None:
        """Keep what the strategy chose for the next tune.

        Not where time ran out before all was tried, or a candidate failed for want of something that is there another
        time: then the next tune goes on from what was found.
        """
        whole = self._budget.over() is None and not self._hindered
        if self._tools.shelf is not None and not self.recalled and whole:
            self._tools.shelf.finish(chosen, self.graph, self._resolved.batch_size, self._ledger.findings)

    def _chosen_again(self, backend: Backend[Any], known: Known) -> Trial | None:
        if self._tools.shelf is None or unusable_verdict(backend, self._recorded) is not None:
            return None
        trial, error, _ = self._recalled(backend, known)
        if trial.accepted:
            return trial
        _put_away(self._tools.shelf, known, trial, error)
        return None

    def _attempt(self, backend: Backend[Any]) -> tuple[Trial, Exception | None, PairedTiming | None]:
        name = described(backend)
        late = self._budget.over()
        if late is not None:
            return Trial(backend=name, verdict=Verdict.skipped, reason=late), None, None
        unusable = unusable_verdict(backend, self._recorded)
        if unusable is not None:
            return failed_trial(name, unusable), unusable, None
        seconds = self._budget.at_most(self._tools.limits.seconds)
        shelf = self._tools.shelf
        if shelf is None:
            return self._built(backend, seconds)
        found = self._known(shelf, backend, seconds)
        if found is not None:
            return found
        with shelf.building(backend, self.graph, seconds) as look_again:
            found = self._known(shelf, backend, seconds) if look_again else None
            return found if found is not None else self._built(backend, seconds)

    def _known(
        self, shelf: Shelf, backend: Backend[Any], seconds: float | None
    ) -> tuple[Trial, Exception | None, PairedTiming | None] | None:
        """Return what earlier tunes, or other processes, found out about a candidate; None if it has to be built."""
        known = shelf.recall(backend, self.graph, seconds)
        if known is None:
            return None
        if not known.trial.accepted:
            return known.trial, error_of(known.trial), known.timing
        found = self._recalled(backend, known)
        if found[0].verdict in _HOLDS:
            return found
        _put_away(shelf, known, *found[:2])
        return None

    def _built(
        self, backend: Backend[Any], seconds: float | None
    ) -> tuple[Trial, Exception | None, PairedTiming | None]:
        """Build, check and measure a candidate, and keep what was found out."""
        job = self._job_for(backend)
        if backend.contained:
            self._compare_with_worker()
        self._stage(described(backend), "build")
        admission = self._gate.admit(backend, job, self._best_timing())
        trial, error, timing = self._entered(admission, backend)
        lasts = admission.lasts and not (error is not None and is_of_the_moment(error))
        self._hindered = self._hindered or not (lasts or isinstance(error, BackendMachineError))
        if self._tools.shelf is not None and lasts:
            engine, files = admission.engine, job.folder / "kept"
            self._tools.shelf.keep(
                backend,
                self.graph,
                Known(trial, timing),
                files=lambda: None if engine is None else saved_files(engine, files),
                seconds=seconds,
            )
            shutil.rmtree(files, ignore_errors=True)
        return trial, error, timing

    def _compare_with_worker(self) -> None:
        """Stay in this process if the worker's module is another: it lacks what was replaced after its import."""
        if not self.rules.correctness or not self._gate.elsewhere:
            return
        differs = self._proofs.foreign
        if differs is not None:
            self._proofs.forget()
            self._gate.stay(
                f"the module computes something else in a worker process ({differs}); something that it uses was"
                " changed after its import"
            )

    def _recalled(self, backend: Backend[Any], known: Known) -> tuple[Trial, Exception | None, PairedTiming | None]:
        """Make an engine that passed everything in an earlier tune again; as :meth:`_entered`."""
        self._stage(described(backend), "load" if known.entry is not None else "build")
        admission = self._gate.readmit(backend, self._job_for(backend), known)
        return self._entered(admission, backend, known.timing)

    def _entered(
        self, admission: Admission, backend: Backend[Any], timing: PairedTiming | None = None
    ) -> tuple[Trial, Exception | None, PairedTiming | None]:
        """Prove the engine of an admission, and close it if it does not hold."""
        engine, kept = admission.engine, False
        if engine is None:
            return admission.trial, admission.error, admission.timing
        try:
            trial, error, timing = self._prove(admission, backend, engine, timing)
            kept = trial.accepted
        finally:
            if not kept:
                close_engine(engine)
        return trial, error, timing

    def _best_timing(self) -> PairedTiming | None:
        timings = [entrant.timing for entrant in self._entrants.values()]
        return max(timings, key=lambda timing: timing.low, default=None)

    def _job_for(self, backend: Backend[Any]) -> Job:
        folder, log = self._tools.folders.new(self.job.name, self.graph.name, backend.name)
        return replace(self.job, folder=folder, log=log)

    def _prove(
        self, admission: Admission, backend: Backend[Any], engine: Engine, timing: PairedTiming | None
    ) -> tuple[Trial, Exception | None, PairedTiming | None]:
        """Check the engine's values and measure it, unless its timing is known; it is entered if it holds."""
        trial = replace(admission.trial, evidence=tuple(dict.fromkeys((*admission.trial.evidence, *engine.notes))))
        workload = self._workload.within(self.graph, engine.ranges)
        if not workload.samples:
            return *refused(trial, measured_elsewhere(trial.backend, engine)), None
        proof: Proof | None = None
        if self.rules.correctness:
            proof = self._proofs.of(engine, judged=admission.judged, known=admission.known)
        if proof is not None:
            self._stage(trial.backend, "check")
            with answering_for(trial.backend, "its engine"):
                trial, error = proof.judge(trial, engine)
            if error is not None:
                return trial, error, None
        path = self._tools.route(self.graph, engine)
        if timing is None:
            self._stage(trial.backend, "measure")
            watch = proof.watch(engine, workload) if proof is not None else None
            with answering_for(trial.backend, "its engine"):
                trial, error, timing, workload = self._track.measure(trial, path, watch, workload)
            if error is not None:
                return trial, error, timing
        if trial.accepted:
            entrant = Entrant(trial, backend, engine, path.call, timing, len(self._ledger.trials), workload)
            self._entrants[id(trial)] = entrant
        return trial, None, timing


def _put_away(shelf: Shelf, known: Known, trial: Trial, error: Exception | None) -> None:
    """Have an engine removed that does not hold any more; not where the machine could not take it at the moment."""
    if error is None or not is_of_the_moment(error):
        shelf.reject(known, f"{trial.verdict}: {trial.reason if error is None else said(error)}")
