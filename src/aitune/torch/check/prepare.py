"""Preparing an examination: which questions, and what the module itself answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check.bounds import CEILING, Bounds
from aitune.torch.check.check import Check
from aitune.torch.check.expectation import Expectation, expect, levelled
from aitune.torch.check.inputs import Probe, sample_probes, synthesised_probes
from aitune.torch.check.metric import measure_metric
from aitune.torch.check.precision import own_precision
from aitune.torch.check.reference import Reference, eager_reference, foreign, make_reference, matched
from aitune.torch.check.rehearsal import Call, Consistency, Eager, Rehearsal, examine_consistency, rehearse
from aitune.torch.check.rng import RngState
from aitune.torch.check.subject import Step, Subject
from aitune.torch.check.trace import no_trace
from aitune.torch.check.variations import vary
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Precision

__all__ = ["Effort", "prepare"]


@dataclass(frozen=True, eq=False)
class Effort:
    """How much an examination asks.

    Attributes:
        synthesised: Whether inputs are made that no sample has; without, for a candidate that passed the
            whole examination elsewhere, the samples alone are asked about.
        reference: Whether to run a copy in higher precision, or what that gave elsewhere for the same calls.
        reference_seconds: Time after which eager is the reference of the calls that are left; None for no
            limit.
        aside: Whether the module's tensors may leave the device while its copy is there: in a process of its own.
        seed: Chooses which rows of a sample make up a synthesised batch.
    """

    synthesised: bool = True
    reference: Reference | bool = True
    reference_seconds: float | None = None
    aside: bool = False
    seed: int = 0


def prepare(
    module: torch.nn.Module,
    graph: GraphSpec,
    samples: Sequence[Sample],
    *,
    forward: Callable[..., Any] | None = None,
    check: Check | None = None,
    effort: Effort | None = None,
) -> Subject:
    """Run the module itself, and its reference, through everything that candidates will be asked.

    Leaves no trace in module, samples and process.

    Args:
        module: The user's module.
        graph: The graph that candidates serve.
        samples: Recorded calls of it, at least one.
        forward: The original forward; None takes the module's.
        check: The user's check; its metric is measured once, here.
        effort: How much to ask; None asks everything.

    Raises:
        ValueError: Without samples.
        AITuneUserInputError: If the metric returns no finite number for the module itself.
        Exception: What the module itself raises on a sample, as it is.
    """
    if not samples:
        raise ValueError(f"{graph.name}: there is no sample to check with")
    effort = effort or Effort()
    with no_trace(module) as found:
        probes, notes = _probes(graph, samples, effort)
        eager = Eager(module, module.forward if forward is None else forward, RngState.capture())
        rehearsal = rehearse(eager, probes, found)
        consistency = _consistency(eager, rehearsal, samples)
        calls, script = _script(eager, rehearsal, repeatable=not (rehearsal.stateful or consistency.random))
        judgeable = effort.synthesised and consistency.fault is None
        ways, more = vary(eager, rehearsal, graph, _own_bounds(eager, samples)) if judgeable else ([], [])
        rehearsal.start.restore(deep=False)
        reference = _reference(module, calls, effort) if consistency.fault is None else eager_reference(len(calls), "")
        expectations = levelled(
            [
                expect(call.outcome, outcome, reference.rounding)
                for call, outcome in zip(calls, reference.outcomes, strict=True)
            ]
        )
        return Subject(
            module=module,
            forward=eager.forward,
            graph=graph,
            steps=_steps(script, calls, expectations, ways, len(rehearsal.calls)),
            reference=reference,
            rng=eager.rng,
            warm=rehearsal.start if rehearsal.warmed else None,
            stateful=rehearsal.stateful,
            random=consistency.random,
            unjudgeable=consistency.fault,
            unjudgeable_as=consistency.verdict,
            own_sharing=consistency.sharing,
            check=check,
            metric=_metric(check, eager, rehearsal),
            notes=(*_remarks(reference, expectations), *notes, *rehearsal.notes, *more),
            foreign=_foreign(module, samples, calls, effort),
        )


def _foreign(module: torch.nn.Module, samples: Sequence[Sample], calls: Sequence[Call], effort: Effort) -> str | None:
    if not isinstance(effort.reference, Reference):
        return None
    return foreign(effort.reference, [call.outcome for call in calls], own_precision(module, samples))


def _remarks(reference: Reference, expectations: Sequence[Expectation]) -> list[str]:
    """Return what a reader should know about the reference."""
    remarks = []
    if reference.reason:
        where = "" if reference.kind == "eager" else " in some calls"
        remarks.append(f"compared with the module's own outputs{where}: {reference.reason}")
    error = max((expectation.error for expectation in expectations), default=0.0)
    if error > CEILING:
        remarks.append(
            f"the module itself is off by {error:.2g} from {reference.kind},"
            " so that size and direction of its outputs are all that could be compared"
        )
    return remarks


def _probes(graph: GraphSpec, samples: Sequence[Sample], effort: Effort) -> tuple[list[Probe], list[str]]:
    probes = sample_probes(graph, samples)
    if not effort.synthesised:
        return probes, []
    more, notes = synthesised_probes(graph, samples, effort.seed)
    return probes + more, notes


def _consistency(eager: Eager, rehearsal: Rehearsal, samples: Sequence[Sample]) -> Consistency:
    if not rehearsal.calls:
        return Consistency("the module cannot be called twice from one state: " + "; ".join(rehearsal.notes))
    return examine_consistency(eager, rehearsal, _own_bounds(eager, samples))


def _own_bounds(eager: Eager, samples: Sequence[Sample]) -> Bounds:
    """Return what the module itself is held to where it is asked the same again."""
    kinds: dict[torch.dtype | None, Precision] = {
        torch.float64: "float64",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
    return Bounds.of(kinds.get(own_precision(eager.module, samples), "float32"))


def _steps(
    script: Sequence[tuple[int, bool, bool]],
    calls: Sequence[Call],
    expectations: Sequence[Expectation],
    ways: Sequence[tuple[int, Probe]],
    probes: int,
) -> tuple[Step, ...]:
    """Return what candidates are asked: every probe, one of them in other ways, then repetitions."""
    asked = [Step(calls[i].probe, expectations[i], reset=reset, scribble=scribble) for i, reset, scribble in script]
    varied = [Step(probe, expectations[i], reset=True) for i, probe in ways]
    return (*asked[:probes], *varied, *asked[probes:])


def _script(eager: Eager, rehearsal: Rehearsal, *, repeatable: bool) -> tuple[list[Call], list[tuple[int, bool, bool]]]:
    """Return the module's calls, and the order in which candidates are asked: call, reset, scribble.

    First every probe; then the first one again and again, with others in between and with earlier outputs
    overwritten.
    """
    calls = list(rehearsal.calls)
    script = [(i, True, False) for i in range(len(calls))]
    if not calls:
        return calls, script
    first = calls[0].probe
    other = next((i for i in range(len(calls) - 1, 0, -1) if calls[i].probe.sizes == first.sizes), 0)
    resized = next((i for i, call in enumerate(calls) if call.probe.sizes != first.sizes), other)
    for place, i in enumerate((0, other, 0, resized, 0)):
        reset, scribble = place == 0, i == 0 and place > 0
        if repeatable:
            script.append((i, reset, scribble))
            continue
        try:
            outcome = eager.perform(calls[i].probe, rehearsal.start, reset=reset).kept()
        except Exception:  # noqa: BLE001 - the user's forward, which may not take as many calls in a row
            break
        calls.append(Call(calls[i].probe, outcome, reset))
        script.append((len(calls) - 1, reset, scribble))
    return calls, script


def _reference(module: torch.nn.Module, calls: Sequence[Call], effort: Effort) -> Reference:
    outcomes = [call.outcome for call in calls]
    if isinstance(effort.reference, Reference):
        return matched(effort.reference, outcomes)
    if not effort.reference:
        return eager_reference(len(calls), "it was not asked for")
    questions = [(call.probe, call.reset) for call in calls]
    return make_reference(module, questions, outcomes, aside=effort.aside, time_limit=effort.reference_seconds)


def _metric(check: Check | None, eager: Eager, rehearsal: Rehearsal) -> float | None:
    if check is None or check.metric is None:
        return None
    rehearsal.start.restore(deep=False)
    eager.rng.restore()
    value = measure_metric(check, eager.forward)
    if not math.isfinite(value):
        raise AITuneUserInputError(
            f"Check: the metric of the module itself is {value}, so nothing can be held against it"
        )
    return value
