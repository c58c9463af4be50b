"""Judging one candidate: every question is put to it, and every answer held against the module's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aitune.exceptions import FOREIGN, AITuneUserInputError
from aitune.torch.check.bounds import Bounds
from aitune.torch.check.check import Check
from aitune.torch.check.compare import Comparison, compare
from aitune.torch.check.held import HeldOutputs
from aitune.torch.check.judgement import Judgement, accept, reject, reject_raised
from aitune.torch.check.metric import Routed, measure_metric, metric_mismatch
from aitune.torch.check.outcome import Outcome, perform
from aitune.torch.check.rng import RngState
from aitune.torch.check.state import Snapshot, take_snapshot
from aitune.torch.check.subject import Step, Subject
from aitune.torch.check.trace import no_trace
from aitune.torch.trial import Precision, Verdict

__all__ = ["Examiner", "entered", "judge"]


def judge(
    run: Callable[..., Any],
    subject: Subject,
    *,
    precision: Precision,
    check: Check | None = None,
    values: bool = True,
) -> Judgement:
    """Decide whether a candidate computes what the module computes.

    Leaves no trace in the module and the process. What the candidate raises becomes a judgement.

    Args:
        run: The candidate's call.
        subject: The questions.
        precision: What the candidate declares to compute in.
        check: The user's check in place of the subject's.
        values: Whether values are judged; without, structure, types and the places of NaN and infinity are.

    Raises:
        AITuneUserInputError: If a metric returns no number.
    """
    if subject.unjudgeable is not None:
        return Judgement(verdict=subject.unjudgeable_as, reason=subject.unjudgeable, notes=subject.notes)
    check = subject.check if check is None else check
    bounds = Bounds.of(precision, check)
    with no_trace(subject.module) as found:
        examiner = Examiner(run, subject, bounds, entered(subject, found))
        if check is None or check.metric is None or not values:
            return examiner.ask_everything(values=values)
        judgement = examiner.ask_everything(values=False)
        return _by_metric(examiner, check, judgement) if judgement.accepted else judgement


def entered(subject: Subject, found: Snapshot) -> Snapshot:
    """Bring the module to the state that calls start from, and return it; ``found`` is the present one."""
    if subject.warm is None:
        return found
    subject.warm.restore()
    return take_snapshot(subject.module)


@dataclass(frozen=True, eq=False)
class Examiner:
    """Puts the questions of a subject to a candidate.

    Attributes:
        run: The candidate's call.
        subject: The questions.
        bounds: What errors are held to.
        start: State of the module that calls start from.
    """

    run: Callable[..., Any]
    subject: Subject
    bounds: Bounds
    start: Snapshot

    def ask_everything(self, *, values: bool = True) -> Judgement:
        """Make every call of the subject, in order, up to the first wrong one."""
        held = HeldOutputs(self.subject.own_sharing)
        worst, asked, refused = Comparison(), 0, []
        for step in self.subject.steps:
            asked += 1
            if step.scribble and not self.subject.stateful:
                held.scribble()
            try:
                outcome = self.call(step)
            except FOREIGN as error:  # an engine may raise anything
                if step.probe.refusable:
                    refused.append(f"it does not take {step.probe.label} ({type(error).__name__})")
                    continue
                return reject_raised(self.subject, error, step, asked)
            found = self.compare(outcome, step, values=values)
            if found.mismatch is None:
                found = replace(found, mismatch=held.mismatch(outcome))
            if found.mismatch is not None:
                return reject(self.subject, found, step, asked)
            held.add(step.probe, outcome)
            worst = max(worst, found, key=lambda one: one.ratio)
        last = self.subject.steps[-1]
        for path in self.start.changes(deep=True).keys() - last.expectation.eager.state.keys():
            mismatch = f"the module's {path} is changed by a call, the module leaves it alone"
            return reject(self.subject, Comparison(mismatch), last, asked)
        accepted = accept(self.subject, worst, asked)
        return replace(accepted, notes=(*accepted.notes, *refused))

    def call(self, step: Step) -> Outcome:
        """Make one call.

        A candidate that moves the random numbers where the module does not gets a second chance from the same
        state, since what a first call compiles or tunes may draw numbers once.
        """
        if step.reset:
            self.subject.rng.restore()
            if self.subject.stateful:
                self.start.restore(deep=False)
        before = RngState.capture()
        outcome = perform(self.run, step.probe, self.start)
        if not outcome.drew or step.expectation.eager.drew or self.subject.stateful:
            return outcome
        before.restore()
        return perform(self.run, step.probe, self.start)

    def compare(self, outcome: Outcome, step: Step, *, values: bool = True) -> Comparison:
        """Hold the outcome of a call against what is expected of it."""
        found = compare(outcome, step.expectation, self.bounds, values=values)
        eager = step.expectation.eager
        if found.mismatch is None and outcome.drew and not eager.drew:
            mismatch = "the random number generators are moved by the call, the module leaves them alone"
            return replace(found, mismatch=mismatch)
        if found.mismatch is None and self.subject.random and not outcome.rng.same(eager.rng):
            mismatch = "the random number generators are left in another state than by the module"
            return replace(found, mismatch=mismatch, of_values=True)
        return found


def _by_metric(examiner: Examiner, check: Check, judgement: Judgement) -> Judgement:
    """Judge values by the user's metric; by distance where the metric never calls the candidate."""
    subject = examiner.subject
    eager = subject.metric
    if eager is None or subject.check is None or subject.check.metric is not check.metric:
        subject.rng.restore()
        eager = measure_metric(check, subject.forward)
    examiner.start.restore(deep=False)
    subject.rng.restore()
    routed = Routed(examiner.run, subject.forward, subject.graph)
    try:
        metric = measure_metric(check, routed)
    except AITuneUserInputError:
        raise
    except FOREIGN as error:  # the user's metric over a foreign engine
        return reject_raised(subject, error, subject.steps[0], judgement.calls)
    if not routed.served:
        judgement = examiner.ask_everything()
        note = "the metric makes no call within the range of this graph, so its values were held to the bound"
        advice = "; record calls as the metric makes them (batch_sizes=, dynamic_shapes=) to have it decide"
        reason = judgement.reason if judgement.accepted else f"{judgement.reason} ({note}{advice})"
        return replace(judgement, reason=reason, notes=(note, *judgement.notes))
    mismatch = metric_mismatch(check, metric, eager)
    verdict = Verdict.accepted if mismatch is None else Verdict.wrong
    return replace(judgement, verdict=verdict, reason=mismatch or "", bound=None, metric=metric)
