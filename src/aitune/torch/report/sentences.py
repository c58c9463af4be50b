"""Events in one plain line each, for logs and for the lines that stay above a live display."""

from __future__ import annotations

from functools import singledispatch

from aitune.torch.events import (
    Event,
    GraphChosen,
    GraphStarted,
    ModuleFinished,
    ModuleStarted,
    Note,
    Recorded,
    StageStarted,
    TrialFinished,
    TuneFinished,
    TuneStarted,
)
from aitune.torch.report import numbers
from aitune.torch.report.foreign import one_line
from aitune.torch.report.outcome import ORIGINAL
from aitune.torch.report.situation import Situation
from aitune.torch.trial import Trial

__all__ = ["figures", "sentence"]

_LONGEST_REASON = 300


@singledispatch
def sentence(event: Event, before: Situation) -> str:  # noqa: ARG001 - the signature of all of them
    """Return an event in words, empty for one that is not worth a line.

    Args:
        event: What happened.
        before: The situation that it happened in.
    """
    return ""


@sentence.register
def _(event: TuneStarted, before: Situation) -> str:  # noqa: ARG001
    limit = "" if event.time_limit is None else f", for at most {numbers.seconds(event.time_limit)}"
    return f"tuning{limit}"


@sentence.register
def _(event: Recorded, before: Situation) -> str:  # noqa: ARG001
    size = "" if event.batch_size is None else f", the last of batch size {event.batch_size}"
    return f"{numbers.count(event.calls, 'call')} recorded{size}"


@sentence.register
def _(event: ModuleStarted, before: Situation) -> str:  # noqa: ARG001
    place = f"({event.index + 1} of {event.total})"
    return f"module {one_line(event.module)} {place}, {numbers.count(event.graphs, 'graph')}"


@sentence.register
def _(event: GraphStarted, before: Situation) -> str:  # noqa: ARG001
    return f"{_place(event.module, event.graph)}: {one_line(event.description)}"


@sentence.register
def _(event: StageStarted, before: Situation) -> str:
    if not event.backend:
        return f"{_place(event.module, event.graph)}: {one_line(event.stage)} of the original"
    if event.backend == before.candidate and event.graph == before.graph:
        return ""  # a further stage of a candidate that had its line
    return f"{_place(event.module, event.graph)}: trying {one_line(event.backend)}"


@sentence.register
def _(event: TrialFinished, before: Situation) -> str:  # noqa: ARG001
    trial = event.trial
    text = f"{_place(event.module, event.graph)}: {trial.verdict}: {one_line(trial.backend)}"
    return "; ".join(part for part in (text, figures(trial), one_line(trial.reason, _LONGEST_REASON)) if part)


@sentence.register
def _(event: GraphChosen, before: Situation) -> str:
    if event.chosen == ORIGINAL:
        return f"{_place(event.module, event.graph)}: the original stays"
    trial = next((trial for trial in before.trials if trial.accepted and trial.backend == event.chosen), None)
    facts = "" if trial is None else figures(trial)
    return f"{_place(event.module, event.graph)}: chose {one_line(event.chosen)}" + (f", {facts}" if facts else "")


@sentence.register
def _(event: ModuleFinished, before: Situation) -> str:  # noqa: ARG001
    if event.failure is None:
        return ""
    return f"module {one_line(event.module)} stays as it was: {one_line(event.failure, _LONGEST_REASON)}"


@sentence.register
def _(event: Note, before: Situation) -> str:  # noqa: ARG001
    return one_line(event.text)


@sentence.register
def _(event: TuneFinished, before: Situation) -> str:  # noqa: ARG001
    return f"tuned in {numbers.seconds(event.seconds)}"


def figures(trial: Trial) -> str:
    """Return speedup and error of a trial, as far as they are known."""
    speedup = numbers.speedup(trial.speedup, trial.speedup_low, trial.speedup_high)
    error = f"error {numbers.error(trial.error)}" if trial.error is not None else ""
    return ", ".join(part for part in (speedup, error) if part)


def _place(module: str, graph: str) -> str:
    return f"{one_line(module)}, {one_line(graph)}" if graph else one_line(module)
