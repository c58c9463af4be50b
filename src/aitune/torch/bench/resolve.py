"""At which batch size a graph is measured, and how far its batch range reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aitune.torch.bench.budget import Budget
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.workload import Workload, sizes_seen
from aitune.torch.check.trace import no_trace
from aitune.torch.graph.job import Job
from aitune.torch.measure import (
    MemoryForecast,
    Stopwatch,
    available_bytes,
    is_out_of_memory,
    peak_growth_bytes,
    search_batch_size,
)

__all__ = ["LARGEST_BATCH", "LONGEST_CALL", "Resolved", "at_batch_size", "resolve"]

LARGEST_BATCH = 1024
"""Largest batch size that is searched where the user declares no range."""

LONGEST_CALL = 0.25
"""Seconds a call, beyond which larger batches are not searched: few wait longer for a little more throughput, and
every comparison at that size would take minutes."""

_HEADROOM = 8
"""How many times a latency budget the original may take at a batch size that is still searched: engines are quicker."""

_CALLS_PER_SIZE = 20
_SECONDS_PER_SIZE = 0.5


@dataclass(frozen=True)
class Resolved:
    """Where speed is measured.

    Attributes:
        job: The job, the batch range of its graph widened to the batch size where that is larger, and that size the
            one to optimise for.
        batch_size: The batch size; None for a graph without a batch axis.
        notes: How it was found.
    """

    job: Job
    batch_size: int | None
    notes: tuple[str, ...] = ()


def resolve(
    job: Job, rules: Rules, original: Callable[..., Any], stopwatch: Stopwatch, budget: Budget | None = None
) -> Resolved:
    """Decide at which batch size the candidates of a graph are compared.

    With the search on, powers of two are tried from the largest recorded size up while the original's throughput
    grows by 5 % or more and memory suffices; for latency that decides no more than which sizes are served. Without it:
    the largest recorded size, or the smallest of the graph for latency.

    Args:
        job: The graph with its samples.
        rules: Whether to search, and whether latency counts.
        original: The call to measure.
        stopwatch: How time is read.
        budget: The time there is; no larger size is tried once it is over. None for no limit.
    """
    found = _resolve(job, rules, original, stopwatch, budget or Budget(stopwatch.clock))
    if found.batch_size is None:
        return found
    return replace(found, job=replace(found.job, graph=found.job.graph.aimed_at(found.batch_size)))


def at_batch_size(job: Job, batch_size: int | None) -> Resolved:
    """Return where speed was measured by an earlier tune that resolved to a batch size."""
    batch = job.graph.batch_dim
    if batch is None or batch_size is None:
        return Resolved(job, None)
    graph = job.graph.with_batch_up_to(batch_size) if batch_size > batch.max else job.graph
    return Resolved(replace(job, graph=graph.aimed_at(batch_size)), batch_size)


def _resolve(job: Job, rules: Rules, original: Callable[..., Any], stopwatch: Stopwatch, budget: Budget) -> Resolved:
    batch, seen = job.graph.batch_dim, sizes_seen(job.graph, job.samples)
    if batch is None or not seen:
        return Resolved(job, None)
    if not rules.find_batch_size:
        return Resolved(job, batch.min if rules.smallest else seen[-1])
    longest = min(LONGEST_CALL, _HEADROOM * (rules.latency_budget or LONGEST_CALL))
    declared = batch.max > seen[-1]
    limit = batch.max if declared else max(LARGEST_BATCH, seen[-1])
    growth: list[MemoryForecast] = []
    latencies: dict[int, float] = {}
    refused: list[str] = []
    typical = job.samples[len(job.samples) // 2 : len(job.samples) // 2 + 1]

    def throughput_at(size: int) -> float:
        workload = Workload.at(job.graph, typical, size)
        one_pass = workload.passes(original)
        try:
            growth.append(MemoryForecast(size, peak_growth_bytes(one_pass, job.device)))
        except Exception as error:  # the user's forward; nobody said that it takes batches larger than recorded
            if size <= seen[-1] or is_out_of_memory(error):
                raise
            refused.append(f"the module does not take batch size {size}: {type(error).__name__}")
            return 0.0
        seconds = _quickest(one_pass, stopwatch)
        latencies[size] = min(seconds, latencies.get(size, seconds))
        return workload.throughput(latencies[size])

    def fits(size: int) -> bool:
        if budget.over() is not None:
            return False
        return max(latencies.values()) <= longest and growth[-1].fits(size, available_bytes(job.device))

    with no_trace(job.module):
        search = search_batch_size(throughput_at, seen[-1], limit, fits)
    if search.best is None:
        return Resolved(job, batch.min if rules.smallest else seen[-1], (search.stopped_because,))
    why = search.stopped_because if (slowest := max(latencies.values())) <= longest else f"a call takes {slowest:.2g} s"
    why = refused[0] if refused else why
    for_latency = rules.smallest or rules.latency_budget is not None
    note = f"{'served up to' if for_latency else 'measured at'} batch size {search.best}: {why}"
    widened = replace(job, graph=job.graph.with_batch_up_to(search.best))
    return Resolved(widened, batch.min if rules.smallest else search.best, (note,))


def _quickest(call: Callable[[], Any], stopwatch: Stopwatch) -> float:
    """Return the time of the quickest of some calls, in seconds: what a busy machine adds is never negative."""
    end = stopwatch.clock.now() + _SECONDS_PER_SIZE
    times = [stopwatch.time_calls(call, 1)[0]]
    while len(times) < _CALLS_PER_SIZE and stopwatch.clock.now() < end:
        times.append(stopwatch.time_calls(call, 1)[0])
    return min(times)
