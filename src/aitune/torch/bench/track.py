"""The race track: where the candidates of one graph are timed, against the original and against each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aitune.torch.bench.budget import Budget
from aitune.torch.bench.contest import Entrant
from aitune.torch.bench.failure import refused, unserved_error
from aitune.torch.bench.latency_budget import LatencyBudget
from aitune.torch.bench.proof import Watched
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.tools import Path, Tools
from aitune.torch.bench.workload import Workload, sizes_seen
from aitune.torch.check.trace import no_trace
from aitune.torch.graph.job import Job
from aitune.torch.measure import PairedTiming, ProfilingConfig, compare
from aitune.torch.trial import Trial, Verdict

__all__ = ["Track"]


_MANY = 40
"""Pairs of blocks of one call each in which a call that is slow now and then shows."""

_SHORT = 10.0  # seconds for a second look at a candidate, over the recorded calls
_TOLERANCE = 0.01
"""Loss there, as a ratio, below which noise is held responsible; as when the whole is timed."""


class Track:
    """Times call paths on the workload of one graph.

    Args:
        job: The graph.
        rules: What a candidate must show.
        tools: The original, and how time is read.
        budget: The time there is.
        workload: The calls.
        latency_budget: What candidates are held to; None for none.
    """

    def __init__(
        self,
        job: Job,
        rules: Rules,
        tools: Tools,
        budget: Budget,
        workload: Workload,
        latency_budget: LatencyBudget | None,
    ) -> None:
        self._job = job
        self._rules = rules
        self._tools = tools
        self._budget = budget
        self._workload = workload
        self._latency_budget = latency_budget
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """What the contests between accepted candidates showed."""
        return tuple(self._notes)

    def measure(
        self, trial: Trial, path: Path, watch: Watched | None, workload: Workload
    ) -> tuple[Trial, Exception | None, PairedTiming, Workload]:
        """Measure a candidate against the original, and compare what it returns meanwhile.

        Args:
            trial: Its record so far.
            path: The way that a user's call takes to it.
            watch: Compares its outputs; None compares none.
            workload: The calls that it serves.

        Returns:
            The trial with figures and verdict, the exception that it stands for if it is refused, the figures against
            the original, and the calls that they are of.
        """
        observe = watch.observe if watch is not None else None
        timing = self._race(path.call, self._tools.original, observe, workload)
        timed = self._timed(trial, timing, workload)
        if self._latency_budget is not None:
            timed, timing, workload = self._latency_budget.judge(trial, path.call, timing)
        unserved = unserved_error(trial.backend, path.fallbacks())
        if unserved is not None:
            return *refused(trial, unserved), timing, workload
        timed = self._over_recorded_calls(timed, path)
        error: Exception | None = None
        if timed.accepted and watch is not None:
            timed, error, seconds = watch.finish(timed, self._tools.stopwatch)
            if timed.accepted and self._gains_nothing(timing, seconds, workload):
                profiling = _longer(self._rules.profiling)
                timing = self._race(path.call, self._tools.original, workload=workload, profiling=profiling)
                timed = self._timed(timed, timing, workload)
        return timed, error, timing, workload

    def _gains_nothing(self, timing: PairedTiming, seconds: Sequence[float], workload: Workload) -> bool:
        """Whether the calls that were made to be compared were too slow on average for the gain that few calls showed.

        A call as long as a block was timed some ten times, in which one that is slow now and then need not be slow.
        """
        few = timing.candidate_seconds >= self._rules.profiling.block_seconds and timing.blocks < _MANY
        if not (few and seconds and self._rules.performance and self._latency_budget is None):
            return False
        mean = statistics.fmean(seconds) * len(workload.samples)
        return timing.baseline_seconds < (1 + self._rules.min_speedup_ratio) * mean

    def _over_recorded_calls(self, trial: Trial, path: Path) -> Trial:
        """Turn away a candidate that gains at a larger batch size and loses on the calls that were recorded.

        It would be put back when the whole is timed, and a candidate that gains on both would not be there any more.
        """
        sizes = sizes_seen(self._job.graph, self._job.samples)
        searched = self._rules.find_batch_size and trial.batch_size is not None and trial.batch_size not in sizes
        if not (trial.accepted and searched and self._rules.performance and self._latency_budget is None):
            return trial
        profiling = replace(self._rules.profiling, max_seconds=min(self._rules.profiling.max_seconds, _SHORT))
        recorded = Workload(self._job.samples, None)
        timing = self._race(
            path.call, self._tools.original, workload=recorded, profiling=profiling, min_gain=-_TOLERANCE
        )
        if timing.outcome != "not_faster":
            return trial
        reason = f"faster at batch size {trial.batch_size}, but not on the recorded calls: {timing.reason}"
        return replace(trial, verdict=Verdict.slower, reason=reason)

    def _timed(self, trial: Trial, timing: PairedTiming, workload: Workload) -> Trial:
        verdict, reason = trial.verdict, trial.reason
        if self._rules.performance and timing.outcome != "faster":
            verdict = Verdict.slower if timing.outcome == "not_faster" else Verdict.undecided
            reason = timing.reason
        return replace(
            trial,
            verdict=verdict,
            reason=reason,
            speedup=timing.speedup,
            speedup_low=timing.low,
            speedup_high=timing.high,
            latency_ms=workload.latency(timing.candidate_seconds) * 1e3,
            throughput=workload.throughput(timing.candidate_seconds),
            batch_size=workload.batch_size,
            evidence=(*trial.evidence, *(["the machine was busy while measuring"] if timing.busy else [])),
        )

    def race_entrants(self, one: Entrant, other: Entrant, min_gain: float) -> PairedTiming:
        """Compare two accepted candidates, the first as the one that is to gain."""
        if self._latency_budget is not None:
            timing = self._latency_budget.race(one.call, one.workload, other.call, other.workload, min_gain)
        else:
            timing = self._race(one.call, other.call, min_gain=min_gain)
        self._notes.append(
            f"{one.trial.backend} against {other.trial.backend}, head to head:"
            f" {timing.speedup:.2f}x [{timing.low:.2f}, {timing.high:.2f}]"
        )
        return timing

    def _race(
        self,
        candidate: Callable[..., Any],
        baseline: Callable[..., Any],
        observe: Callable[[Any], None] | None = None,
        workload: Workload | None = None,
        profiling: ProfilingConfig | None = None,
        min_gain: float | None = None,
    ) -> PairedTiming:
        """Time two call paths; None takes the workload of the graph and the rules."""
        workload = workload or self._workload
        with no_trace(self._job.module):
            return compare(
                workload.passes(candidate),
                workload.passes(baseline),
                stopwatch=self._tools.stopwatch,
                config=self._budget.fitted(profiling or self._rules.profiling),
                min_gain=self._rules.min_speedup_ratio if min_gain is None else min_gain,
                observe=observe,
            )


def _longer(profiling: ProfilingConfig) -> ProfilingConfig:
    """Return rules by which no decision falls before many calls were timed."""
    pairs, seconds = min(max(profiling.min_blocks, _MANY), profiling.max_blocks), 2 * profiling.max_seconds
    return replace(profiling, min_blocks=pairs, settle_seconds=seconds, max_seconds=seconds)
