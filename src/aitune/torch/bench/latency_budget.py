"""The latency budget: at which batch size a call path has the highest throughput with calls that are quick enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from aitune.torch.bench.rules import Rules
from aitune.torch.bench.workload import Workload, sizes_seen
from aitune.torch.check.trace import no_trace
from aitune.torch.graph.job import Job
from aitune.torch.measure import PairedTiming, ProfilingConfig, Stopwatch, compare, latency_percentiles
from aitune.torch.measure.block import seconds_per_call
from aitune.torch.trial import ORIGINAL, Trial, Verdict

__all__ = ["AtSize", "LatencyBudget"]

_SECONDS_PER_SIZE = 5.0  # for the percentiles of one kind of call; 100 calls of 50 ms


@dataclass(frozen=True)
class AtSize:
    """A call path at one batch size.

    Attributes:
        workload: The calls.
        p99: 99 of 100 calls take at most this long, in seconds; of the slowest kind of call, where calls differ.
        latency: Median time of a call, in seconds, the mean over the kinds of calls.
    """

    workload: Workload
    p99: float
    latency: float

    @property
    def throughput(self) -> float:
        """Batch entries a second."""
        return (self.workload.batch_size or 1) / max(self.latency, 1e-12)

    def __str__(self) -> str:
        size = self.workload.batch_size
        return f"p99 {self.p99 * 1e3:.3g} ms" + ("" if size is None else f" at batch size {size}")


@dataclass(frozen=True)
class _Found:
    best: AtSize | None  # None: no size is within the budget
    nearest: AtSize  # the best, or the one with the least p99


class LatencyBudget:
    """Holds call paths of one graph against a budget for the 99th percentile of their latency.

    Args:
        job: The graph with its samples.
        rules: What a candidate must show; ``latency_budget`` is set.
        original: The call that a candidate would replace.
        stopwatch: How time is read.
    """

    def __init__(self, job: Job, rules: Rules, original: Callable[..., Any], stopwatch: Stopwatch) -> None:
        assert rules.latency_budget is not None
        self.seconds = rules.latency_budget
        self._job = job
        self._rules = rules
        self._original = original
        self._stopwatch = stopwatch
        self._seen: list[tuple[str, AtSize]] = []

    @cached_property
    def _baseline(self) -> _Found:
        return self._find(self._original)

    @property
    def original_fits(self) -> bool:
        """Whether the original is within the budget at any batch size."""
        return self._baseline.best is not None

    @property
    def workload(self) -> Workload:
        """The calls at the batch size that suits the original best; its smallest one where none does."""
        return self._baseline.nearest.workload

    @property
    def nearest(self) -> tuple[str, AtSize]:
        """The candidate or original with the least p99 of all, and its figures."""
        return min([(ORIGINAL, self._baseline.nearest), *self._seen], key=lambda pair: pair[1].p99)

    def judge(
        self, trial: Trial, call: Callable[..., Any], timing: PairedTiming
    ) -> tuple[Trial, PairedTiming, Workload]:
        """Find the batch size of a candidate, and compare its throughput there with the best of the original.

        Args:
            trial: What is known of it.
            call: Its call path.
            timing: Its comparison with the original on :attr:`workload`.

        Returns:
            The trial with verdict and figures, the comparison in terms of throughput, and the calls.
        """
        found, base = self._find(call), self._baseline
        at = found.nearest
        self._seen.append((trial.backend, at))
        if at.workload.batch_size != base.nearest.workload.batch_size:
            gain = self._rules.min_speedup_ratio
            timing = self.race(call, at.workload, self._original, base.nearest.workload, gain)
        verdict, reason = trial.verdict, trial.reason
        if found.best is None:
            verdict, reason = Verdict.slower, f"over the latency budget of {self.seconds * 1e3:g} ms: {at}"
        elif self._rules.performance and base.best is not None and timing.outcome != "faster":
            verdict = Verdict.slower if timing.outcome == "not_faster" else Verdict.undecided
            reason = timing.reason
        evidence = (f"{at}, within a budget of {self.seconds * 1e3:g} ms",) if found.best is not None else ()
        trial = replace(
            trial,
            verdict=verdict,
            reason=reason,
            speedup=timing.speedup,
            speedup_low=timing.low,
            speedup_high=timing.high,
            latency_ms=at.latency * 1e3,
            throughput=at.throughput,
            batch_size=at.workload.batch_size,
            evidence=(*trial.evidence, *evidence),
        )
        return trial, timing, at.workload

    def race(
        self,
        candidate: Callable[..., Any],
        at: Workload,
        baseline: Callable[..., Any],
        base: Workload,
        gain: float,
    ) -> PairedTiming:
        """Compare the throughputs of two call paths, each on calls of its own.

        Args:
            candidate: It is to have more throughput, ``gain`` more as a ratio.
            at: Its calls.
            baseline: What it is held against.
            base: The calls of that.
            gain: As a ratio; 0.02 asks for 1.02 times the throughput.

        Returns:
            A comparison whose ratios are those of throughput: how many times more entries a second.
        """
        more = _entries(at) / _entries(base)
        with no_trace(self._job.module):
            timing = compare(
                at.passes(candidate),
                base.passes(baseline),
                stopwatch=self._stopwatch,
                config=self._rules.profiling,
                min_gain=(1 + gain) / more - 1,
            )
        return replace(
            timing, min_gain=gain, speedup=timing.speedup * more, low=timing.low * more, high=timing.high * more
        )

    def _find(self, call: Callable[..., Any]) -> _Found:
        """Return the batch size with the highest throughput whose p99 is within the budget.

        Throughput is estimated at every size, up to the first at which a call takes longer than the budget in any
        case; then percentiles are measured, the most promising size first, down to one that fits.
        """
        with no_trace(self._job.module):
            measured: list[AtSize] = []
            for workload in self._promising(call):
                measured.append(self._at(call, workload))
                if measured[-1].p99 <= self.seconds:
                    return _Found(measured[-1], measured[-1])
            return _Found(None, min(measured, key=lambda at: at.p99))

    def _promising(self, call: Callable[..., Any]) -> list[Workload]:
        estimates: list[tuple[float, Workload]] = []
        for size in self._sizes:
            workload = Workload.at(self._job.graph, self._job.samples, size)
            seconds = seconds_per_call(workload.passes(call), self._stopwatch, self._rules.profiling)
            if workload.latency(seconds) > self.seconds:
                return _best_first(estimates) or [workload]
            estimates.append((workload.throughput(seconds), workload))
        return _best_first(estimates)

    @cached_property
    def _sizes(self) -> list[int | None]:
        batch = self._job.graph.batch_dim
        if batch is None:
            return [None]
        powers = {1 << power for power in range(batch.max.bit_length())}
        seen = sizes_seen(self._job.graph, self._job.samples)
        sizes = {batch.min, *powers, *seen, batch.max}
        return [*sorted(size for size in sizes if batch.min <= size <= batch.max)]

    def _at(self, call: Callable[..., Any], workload: Workload) -> AtSize:
        profiling: ProfilingConfig = self._rules.profiling
        profiling = replace(profiling, max_seconds=min(profiling.max_seconds, _SECONDS_PER_SIZE))
        kinds = [
            latency_percentiles(
                Workload((sample,), workload.batch_size).passes(call), stopwatch=self._stopwatch, config=profiling
            )
            for sample in workload.samples
        ]
        return AtSize(workload, max(kind.p99 for kind in kinds), sum(kind.p50 for kind in kinds) / len(kinds))


def _best_first(estimates: list[tuple[float, Workload]]) -> list[Workload]:
    return [workload for _, workload in sorted(estimates, key=lambda pair: -pair[0])]


def _entries(workload: Workload) -> int:
    return len(workload.samples) * (workload.batch_size or 1)
