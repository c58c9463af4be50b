"""Other ways to make a call whose answer is known: other forms, memory, modes and threads."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from aitune.torch.check.bounds import Bounds
from aitune.torch.check.compare import compare
from aitune.torch.check.expectation import expect
from aitune.torch.check.inputs import Probe
from aitune.torch.check.manner import Manner
from aitune.torch.check.rehearsal import Call, Eager, Rehearsal, left_out
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import Omitted

__all__ = ["forms", "vary"]

_SECONDS = 5.0
"""Time for the module's own calls, after which no further variation is tried."""


def forms(graph: GraphSpec, sample: Sample) -> Sequence[Sample]:
    """Return the call as it was written, with as much as possible by position, and with as much by keyword."""
    arguments = graph.signature.bind(sample.args, sample.kwargs)
    by_position, rest = graph.signature.call(arguments)
    every = [Sample(sample.args, sample.kwargs, sample.batch_size), Sample(by_position, rest, sample.batch_size)]
    kinds = {parameter.kind for parameter in graph.signature.parameters}
    if kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        given = {name: value for name, value in arguments.items() if value is not Omitted.OMITTED}
        every.append(Sample((), given, sample.batch_size))
    return every


def vary(
    eager: Eager, rehearsal: Rehearsal, graph: GraphSpec, bounds: Bounds
) -> tuple[list[tuple[int, Probe]], list[str]]:
    """Find the ways to make one small call in which the module itself gives the same answer.

    Args:
        eager: The module.
        rehearsal: Its calls, each from the same state.
        graph: The graph that candidates serve.
        bounds: What the module itself is held to.

    Returns:
        For each way, which of the calls it makes and how, in order; and notes about ways that were left out. None for
        a module that changes in calls.
    """
    ways: list[tuple[int, Probe]] = []
    notes: list[str] = []
    if rehearsal.stateful or not rehearsal.calls:
        return ways, notes
    place = _small(rehearsal.calls)
    call, started = rehearsal.calls[place], time.monotonic()
    wanted = expect(call.outcome)
    for probe in _ways(graph, call.probe):
        if probe.manner is Manner.THREAD and _is_followed(eager.module):
            continue
        if time.monotonic() - started > _SECONDS:
            notes.append(f"not checked with {probe.label}: calls of the module take long")
            continue
        try:
            found = compare(eager.perform(probe, rehearsal.start), wanted, bounds)
        except Exception as error:  # noqa: BLE001 - the user's forward
            notes.append(left_out(probe, error))
            continue
        if found.mismatch is None:
            ways.append((place, probe))
        else:
            notes.append(f"not checked with {probe.label}: the module itself does something else there")
    return ways, notes


def _is_followed(module: torch.nn.Module) -> bool:
    """Whether something follows the calls of modules: it would take those of another thread for the program's own."""
    slot = "_compiled_call_impl"
    below = (one for one in module.modules() if one is not module)
    return getattr(torch.nn.Module, slot, None) is not None or any(one.__dict__.get(slot) is not None for one in below)


def _small(calls: Sequence[Call]) -> int:
    """Return which recorded call has the fewest elements, of those with more than one row if there are any."""

    def cost(place: int) -> tuple[bool, int]:
        tensors = calls[place].probe.tensors.values()
        return all(len(t) < 2 for t in tensors if t.dim()), sum(t.numel() for t in tensors)

    return min((place for place, call in enumerate(calls) if call.probe.recorded), key=cost, default=0)


def _ways(graph: GraphSpec, probe: Probe) -> Iterator[Probe]:
    base = replace(probe, recorded=False)
    seen = [_written(probe.sample)]
    for form in forms(graph, probe.sample):
        if _written(form) not in seen:
            seen.append(_written(form))
            by = "by keyword" if form.kwargs else "by position"
            yield replace(base, label=f"{probe.label} {by}", sample=form, refusable=True)
    for manner in Manner:
        pointless = manner is Manner.GRADIENTS and graph.training  # those calls are the original's
        if manner is not Manner.PLAIN and not pointless and (probe.tensors or manner in _OF_THE_PROCESS):
            yield replace(base, label=f"{probe.label} {manner.value}", manner=manner)


_OF_THE_PROCESS = (Manner.GRADIENTS, Manner.INFERENCE, Manner.THREAD)


def _written(sample: Sample) -> tuple[int, tuple[str, ...]]:
    return len(sample.args), tuple(sorted(sample.kwargs))
