"""The module's own run through the questions: what it does, and whether it does so every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aitune.torch.check.bounds import Bounds
from aitune.torch.check.compare import compare
from aitune.torch.check.expectation import expect
from aitune.torch.check.free_memory import free_bytes
from aitune.torch.check.inputs import Probe
from aitune.torch.check.outcome import Outcome, perform
from aitune.torch.check.rng import RngState
from aitune.torch.check.sharing import meeting
from aitune.torch.check.state import Snapshot, take_snapshot
from aitune.torch.check.tensor_state import size_in_bytes
from aitune.torch.graph.spec import Opaque, constant_or_opaque
from aitune.torch.trial import Verdict

__all__ = ["Call", "Consistency", "Eager", "Rehearsal", "examine_consistency", "left_out", "rehearse"]

_COPIES = 16  # of an output: eager's, a reference of twice the size, and what is held of a candidate's calls
_SPARE_AFTER = 5.0  # seconds of the module's own calls after which spare ones are left out


@dataclass(frozen=True, eq=False)
class Eager:
    """The module itself, and the random state that its calls start from.

    Attributes:
        module: The module.
        forward: Its forward.
        rng: State of the random number generators.
    """

    module: torch.nn.Module
    forward: Callable[..., Any]
    rng: RngState

    def perform(self, probe: Probe, start: Snapshot, *, reset: bool = True) -> Outcome:
        """Make a call, from ``start`` and :attr:`rng` if ``reset``; the outcome has the live tensors."""
        if reset:
            start.restore(deep=False)
            self.rng.restore()
        return perform(self.forward, probe, start)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the module itself.

    Attributes:
        probe: The inputs.
        outcome: What it did, with tensors of its own.
        reset: Whether module and random numbers were put back to the beginning before it.
    """

    probe: Probe
    outcome: Outcome
    reset: bool = True


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The module's own calls, each from the same state.

    Attributes:
        calls: One for each probe that it can run.
        start: The state from which each begins.
        warmed: Whether ``start`` is not the state in which the module was found.
        stateful: Whether calls change the module.
        notes: Which probes were left out, and why.
    """

    calls: tuple[Call, ...]
    start: Snapshot
    warmed: bool = False
    stateful: bool = False
    notes: tuple[str, ...] = ()

    @property
    def drew(self) -> bool:
        """Whether a call drew random numbers."""
        return any(call.outcome.drew for call in self.calls)


@dataclass(frozen=True)
class Consistency:
    """Whether the module does the same every time.

    Attributes:
        fault: Why it cannot be told, None if it can: calls differ although state and random numbers are the same, or
            there is nothing to compare.
        verdict: What a candidate is for that.
        random: Whether other random numbers give other outputs.
        sharing: Outputs (by position) that it hands out in the same memory in two calls.
    """

    fault: str | None = None
    verdict: Verdict = Verdict.random
    random: bool = False
    sharing: frozenset[int] = frozenset()


def rehearse(eager: Eager, probes: Sequence[Probe], found: Snapshot) -> Rehearsal:
    """Run the module on every probe.

    A forward that changes the module is run again from the state that it leads to: where nothing changes any
    more, it was a cache that fills by itself, and all calls start with the cache filled. Else all start from
    the state as found.

    Args:
        eager: The module.
        probes: Inputs. The module's own exception on a recorded one is passed on; others are left out with a
            note.
        found: The module's present state, which the caller restores in the end.
    """
    calls, notes = _filling(eager, probes, found)
    if not any(call.outcome.state for call in calls) and not found.changes(deep=True):
        return Rehearsal(calls, found, notes=notes)
    usable = [call.probe for call in calls]
    warm = take_snapshot(eager.module)
    calls, _ = _from(eager, usable, warm)
    if len(calls) == len(usable) and not any(call.outcome.state for call in calls):
        return Rehearsal(calls, warm, warmed=True, notes=notes)
    calls, more = _from(eager, usable, found)
    return Rehearsal(calls, found, stateful=True, notes=notes + more)


def examine_consistency(eager: Eager, rehearsal: Rehearsal, bounds: Bounds) -> Consistency:
    """Run the first and the last call again, and those that drew random numbers with others."""
    start = rehearsal.start
    opaque = next((name for call in rehearsal.calls for name in _opaque(call.outcome)), None)
    if opaque is not None:
        return Consistency(f"{opaque}, which cannot be compared", Verdict.unsupported)
    live: list[Outcome] = []
    for call in (rehearsal.calls[0], rehearsal.calls[0], rehearsal.calls[-1]):
        live.append(eager.perform(call.probe, start))
        different = compare(live[-1], expect(call.outcome), bounds)
        if different.mismatch is not None:
            return Consistency(
                f"the module does not do the same twice from the same random state: {different.mismatch}"
            )
    sharing = _same_memory(live[0], live[1])
    for call in rehearsal.calls:
        if not call.outcome.drew:
            continue
        start.restore(deep=False)
        eager.rng.elsewhere()
        for _, generator, _ in start.generators:
            generator.manual_seed(generator.initial_seed() + 1)
        outcome = eager.perform(call.probe, start, reset=False)
        if compare(outcome, expect(call.outcome), bounds).mismatch is not None:
            return Consistency(random=True, sharing=sharing)
    return Consistency(sharing=sharing)


def _filling(eager: Eager, probes: Sequence[Probe], found: Snapshot) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """Make the calls without putting the module back in between, so that its caches fill."""
    calls: list[Call] = []
    notes: list[str] = []
    started = time.monotonic()
    for probe in probes:
        if probe.spare and time.monotonic() - started > _SPARE_AFTER:
            notes.append(f"not checked at {probe.label}: calls of the module take long")
            continue
        if not probe.recorded and not _room(calls):
            notes.append(f"not checked at {probe.label}: the outputs of so many calls would take too much memory")
            continue
        try:
            eager.rng.restore()
            try:
                outcome = eager.perform(probe, found, reset=False)
            except Exception:
                if not found.changes():
                    raise
                outcome = eager.perform(probe, found)  # what it kept of earlier calls may have been the cause
        except Exception as error:
            if probe.recorded:
                raise
            notes.append(left_out(probe, error))
        else:
            calls.append(Call(probe, outcome.kept()))
    return tuple(calls), tuple(notes)


def _from(eager: Eager, probes: Sequence[Probe], start: Snapshot) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """Make each call from one state; what works only after other calls is left out."""
    calls, notes = [], []
    for probe in probes:
        try:
            calls.append(Call(probe, eager.perform(probe, start).kept()))
        except Exception as error:  # noqa: BLE001, PERF203 - the user's forward
            notes.append(left_out(probe, error))
    return tuple(calls), tuple(notes)


def _room(calls: Sequence[Call]) -> bool:
    """Whether another outcome as large as the largest so far may be kept, with its reference and a candidate's own."""
    outputs = [[leaf for leaf in call.outcome.leaves if isinstance(leaf, torch.Tensor)] for call in calls]
    largest = max(outputs, key=lambda leaves: sum(map(size_in_bytes, leaves)), default=[])
    return not largest or _COPIES * sum(map(size_in_bytes, largest)) <= free_bytes(largest[0].device)


def left_out(probe: Probe, error: Exception) -> str:
    """Return the note about a question that the module itself cannot answer."""
    first = (str(error).strip().splitlines() or [""])[0][:120]
    return f"not checked at {probe.label}: the module itself raises {type(error).__name__} ({first})"


def _opaque(outcome: Outcome) -> list[str]:
    """Return what of an output is neither a tensor, an array nor a value that can be told from another one."""
    return [
        f"{name} is a {type(leaf).__qualname__}"
        for name, leaf in outcome.outputs.items()
        if not isinstance(leaf, (torch.Tensor, np.ndarray, np.generic))
        and isinstance(constant_or_opaque((), leaf), Opaque)
    ]


def _same_memory(first: Outcome, second: Outcome) -> frozenset[int]:
    marked = [
        ((place, index), leaf)
        for place, outcome in enumerate((first, second))
        for index, leaf in enumerate(outcome.leaves)
        if isinstance(leaf, torch.Tensor)
    ]
    return frozenset(index for a, b in meeting(marked) if a[0] != b[0] for index in (a[1], b[1]))
