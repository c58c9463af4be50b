"""At which batch size a graph is measured, and how far its batch range reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.torch.bench.rules import Rules
from aitune.torch.bench.workload import Workload, sizes_seen
from aitune.torch.check.trace import no_trace
from aitune.torch.graph.job import Job
from aitune.torch.measure import (
    MemoryForecast,
    Stopwatch,
    available_bytes,
    peak_growth_bytes,
    search_batch_size,
)

__all__ = ["LARGEST_BATCH", "LONGEST_CALL", "Resolved", "resolve"]

LARGEST_BATCH = 1024
"""Largest batch size that is searched where the user declares no range."""

LONGEST_CALL = 0.25
"""Seconds a call, beyond which larger batches are not searched: few wait longer for a little more throughput, and
every comparison at that size would take minutes."""

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


def resolve(job: Job, rules: Rules, original: Callable[..., Any], stopwatch: Stopwatch) -> Resolved:
    """Decide at which batch size the candidates of a graph are compared.

    With the search on, powers of two are tried from the largest recorded size up while the original's throughput
    grows by 5 % or more and memory suffices. Without it: the largest recorded size, or the smallest for latency.

    Args:
        job: The graph with its samples.
        rules: Whether to search, and whether latency counts.
        original: The call to measure.
        stopwatch: How time is read.
    """
    found = _resolve(job, rules, original, stopwatch)
    if found.batch_size is None:
        return found
    return replace(found, job=replace(found.job, graph=found.job.graph.aimed_at(found.batch_size)))


def _resolve(job: Job, rules: Rules, original: Callable[..., Any], stopwatch: Stopwatch) -> Resolved:
    batch, seen = job.graph.batch_dim, sizes_seen(job.graph, job.samples)
    if batch is None or not seen:
        return Resolved(job, None)
    if rules.smallest:
        return Resolved(job, seen[0])
    if not rules.find_batch_size:
        return Resolved(job, seen[-1])
    declared = batch.max > seen[-1]
    limit = batch.max if declared else max(LARGEST_BATCH, seen[-1])
    growth: list[MemoryForecast] = []
    latencies: list[float] = []
    typical = job.samples[len(job.samples) // 2 : len(job.samples) // 2 + 1]

    def throughput_at(size: int) -> float:
        workload = Workload.at(job.graph, typical, size)
        one_pass = workload.passes(original)
        growth.append(MemoryForecast(size, peak_growth_bytes(one_pass, job.device)))
        latencies.append(_quickest(one_pass, stopwatch))
        return workload.throughput(latencies[-1])

    def fits(size: int) -> bool:
        return latencies[-1] <= LONGEST_CALL and growth[-1].fits(size, available_bytes(job.device))

    with no_trace(job.module), torch.no_grad():
        search = search_batch_size(throughput_at, seen[-1], limit, fits)
    if search.best is None:
        return Resolved(job, seen[-1], (search.stopped_because,))
    why = search.stopped_because if latencies[-1] <= LONGEST_CALL else f"a call takes {latencies[-1]:.2g} s"
    note = f"measured at batch size {search.best}: {why}"
    return Resolved(replace(job, graph=job.graph.with_batch_up_to(search.best)), search.best, (note,))


def _quickest(call: Callable[[], Any], stopwatch: Stopwatch) -> float:
    """Return the time of the quickest of some calls, in seconds: what a busy machine adds is never negative."""
    end = stopwatch.clock.now() + _SECONDS_PER_SIZE
    times = [stopwatch.time_calls(call, 1)[0]]
    while len(times) < _CALLS_PER_SIZE and stopwatch.clock.now() < end:
        times.append(stopwatch.time_calls(call, 1)[0])
    return min(times)
