"""Comparing the outputs of many calls, so that an engine that is wrong once in twenty calls is found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aitune.exceptions import FOREIGN
from aitune.torch.check.bounds import Bounds
from aitune.torch.check.check import Check
from aitune.torch.check.compare import Comparison, compare
from aitune.torch.check.expectation import Expectation, expect
from aitune.torch.check.inputs import Probe
from aitune.torch.check.judge import Examiner, entered
from aitune.torch.check.judgement import Judgement, accept, reject, reject_raised
from aitune.torch.check.outcome import Outcome
from aitune.torch.check.rehearsal import Eager
from aitune.torch.check.subject import Step, Subject
from aitune.torch.check.trace import no_trace
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Precision

__all__ = ["OutputWatch", "Quota", "run_watch"]


@dataclass(frozen=True)
class Quota:
    """How many calls of an accepted candidate are compared (decision 8).

    Attributes:
        calls: Calls in all.
        consecutive: Calls without an uncompared one in between.
        seconds: Time for calls that are made only to be compared; None for no limit. When it is over no more
            are made, save that the consecutive ones may take four times as long.
    """

    calls: int = 100
    consecutive: int = 20
    seconds: float | None = None

    def reached(self, compared: int, row: int) -> bool:
        """Whether enough calls were compared."""
        return compared >= self.calls and row >= self.consecutive

    def spent(self, elapsed: float, row: int) -> bool:
        """Whether the time is over."""
        return self.seconds is not None and elapsed > self.seconds * (1 if row >= self.consecutive else 4)


class OutputWatch:
    """Compares the outputs of one candidate while it is measured, and makes up for what is missing.

    An output with the bits of one that was found right costs a comparison of memory, another one the full
    comparison. Where outputs depend on more than the sample (state, random numbers, inputs that a call
    changes), :meth:`observe` passes over them, and :meth:`make_up` starts each call afresh. Not for several
    threads at once.

    Args:
        subject: The questions that the candidate has passed.
        precision: What it declares to compute in.
        check: The user's check in place of the subject's.
        samples: The inputs that it is measured with, None for the subject's own samples. The module itself is
            run on those that the subject does not know, once, without a trace.

    Attributes:
        compared: Number of calls that were compared.
        longest_row: The largest number of them without an uncompared call in between.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        precision: Precision,
        check: Check | None = None,
        samples: Sequence[Sample] | None = None,
    ) -> None:
        check = subject.check if check is None else check
        self.compared = 0
        self.longest_row = 0
        self._row = 0
        self._subject = subject
        self._bounds = Bounds.of(precision, check)
        self._by_metric = check is not None and check.metric is not None
        self._steps = _own_steps(subject) if samples is None else _steps(subject, samples)
        self._right: dict[int, Outcome] = {}
        self._worst = Comparison()
        self._rejection: Judgement | None = None
        self._note = ""

    def observe(self, index: int, output: Any) -> None:
        """Compare what a call returned. Never raises on account of the output.

        Args:
            index: Which of the samples the call was made with.
            output: What it returned, not yet used otherwise.
        """
        if not self._subject.repeatable or self._subject.mutating:
            return
        step = self._steps[index]
        self._take(index, step.expectation.eager.with_output(output))

    def pass_over(self) -> None:
        """Note that a call was made whose output is not compared."""
        self._row = 0

    def make_up(
        self, run: Callable[..., Any], quota: Quota, *, clock: Callable[[], float] = time.monotonic
    ) -> Judgement:
        """Make and compare calls until the quota is reached or its time is spent, and judge.

        Args:
            run: The candidate's call.
            quota: How many calls to have compared in the end.
            clock: Seconds from any origin.
        """
        started, self._row = clock(), 0
        with no_trace(self._subject.module) as found:
            examiner = Examiner(run, self._subject, self._bounds, entered(self._subject, found))
            while self._rejection is None and not quota.reached(self.compared, self.longest_row):
                if quota.spent(clock() - started, self._row):
                    self._note = f", since the time for more, {quota.seconds:g} s, was over"
                    break
                index = self._row % len(self._steps)
                try:
                    outcome = self._call(examiner, self._steps[index])
                except FOREIGN as error:  # an engine may raise at any call
                    self._rejection = reject_raised(self._subject, error, self._steps[index], self.compared + 1)
                else:
                    self._take(index, outcome)
        return self.judgement()

    def judgement(self) -> Judgement:
        """Return what has come of it so far."""
        if self._rejection is not None:
            return self._rejection
        note = f"{self.compared} calls were compared, {self.longest_row} of them in a row{self._note}"
        judgement = accept(self._subject, self._worst, self.compared)
        return replace(judgement, notes=(*judgement.notes, note))

    def _call(self, examiner: Examiner, step: Step) -> Outcome:
        if not self._subject.repeatable:
            return examiner.call(replace(step, reset=True))
        fresh = step.probe.sample.fresh()
        return step.expectation.eager.with_output(examiner.run(*fresh.args, **fresh.kwargs))

    def _take(self, index: int, outcome: Outcome) -> None:
        if self._rejection is not None:
            return
        step, right = self._steps[index], self._right.get(index)
        self.compared += 1
        self._row += 1
        self.longest_row = max(self.longest_row, self._row)
        if right is not None and self._subject.repeatable and outcome.same_output(right):
            return
        # With a metric, values cannot be held to eager's: the first output is looked at as the examination
        # did, and the later ones are held to the first.
        expected = expect(right) if self._by_metric and right is not None else step.expectation
        found = compare(outcome, expected, self._bounds, values=not self._by_metric or right is not None)
        if found.mismatch is not None:
            self._rejection = reject(self._subject, found, step, self.compared)
            return
        if right is None:
            self._right[index] = outcome.kept()
        self._worst = max(self._worst, found, key=lambda one: one.ratio)


def run_watch(
    run: Callable[..., Any],
    subject: Subject,
    *,
    precision: Precision,
    check: Check | None = None,
    quota: Quota | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Judgement:
    """Make calls of a candidate only to compare them, as :meth:`OutputWatch.make_up` does from the start."""
    return OutputWatch(subject, precision=precision, check=check).make_up(run, quota or Quota(), clock=clock)


def _own_steps(subject: Subject) -> list[Step]:
    steps: dict[int, Step] = {}
    for step in subject.steps:
        if step.probe.recorded and step.reset:
            steps.setdefault(id(step.probe), step)
    return list(steps.values())


def _steps(subject: Subject, samples: Sequence[Sample]) -> list[Step]:
    """Return a step for each sample, made by running the module itself where the subject has none."""
    known = {id(step.probe.sample): step for step in reversed(subject.steps) if step.reset}
    if all(id(sample) in known for sample in samples):
        return [known[id(sample)] for sample in samples]
    with no_trace(subject.module) as found:
        start, eager = entered(subject, found), Eager(subject.module, subject.forward, subject.rng)
        for i, sample in enumerate(samples):
            if id(sample) not in known:
                probe = Probe(f"measured sample {i}", sample, subject.graph.signature, recorded=True)
                expectation = expect(eager.perform(probe, start).kept())
                known[id(sample)] = Step(probe, _as_exact_as(expectation, subject), reset=True)
        return [known[id(sample)] for sample in samples]


def _as_exact_as(expectation: Expectation, subject: Subject) -> Expectation:
    """Return an expectation without a reference of its own, with eager's errors taken from the subject's."""
    yards = {}
    for name, yard in expectation.yards.items():
        others = [step.expectation.yards[name] for step in subject.steps if name in step.expectation.yards]
        yards[name] = replace(
            yard,
            luck=max((other.error for other in others), default=0.0),
            element_error=max((other.element_error for other in others), default=0.0),
        )
    return replace(expectation, yards=yards)
