"""The proof of values: the module's own answers once for a graph, each candidate held against them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aitune.exceptions import CorrectnessError
from aitune.torch.backend import Engine
from aitune.torch.bench.workload import Workload
from aitune.torch.check import Check, Effort, Judgement, OutputWatch, Quota, Subject, judge, prepare
from aitune.torch.graph.job import Job
from aitune.torch.measure import Stopwatch
from aitune.torch.trial import Trial

__all__ = ["Proof", "Watched"]

_QUOTA = Quota(seconds=10.0)


@dataclass(frozen=True)
class Proof:
    """What every candidate of a graph is asked.

    Attributes:
        subject: Questions and answers.
    """

    subject: Subject

    @classmethod
    def prepare(cls, job: Job, check: Check | None, effort: Effort | None = None) -> Proof:
        """Run the module and its reference through every question.

        Args:
            job: The graph with its samples.
            check: The user's check.
            effort: How much to ask; None asks everything.

        Raises:
            Exception: What the module itself raises on a recorded call.
        """
        return cls(prepare(job.module, job.graph, job.samples, forward=job.forward, check=check, effort=effort))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the reference and the questions."""
        return self.subject.notes

    def judge(self, trial: Trial, engine: Engine) -> tuple[Trial, Exception | None]:
        """Judge an engine's values.

        Returns:
            The trial with error and bound, and the exception that it stands for where it is not accepted.
        """
        return _entered(trial, judge(engine.run, self.subject, precision=engine.precision))

    def watch(self, engine: Engine, workload: Workload) -> Watched:
        """Return what compares the outputs that are made while an engine is measured on a workload."""
        watch = OutputWatch(self.subject, precision=engine.precision, samples=workload.samples)
        return Watched(watch, engine.run)


@dataclass(frozen=True)
class Watched:
    """An engine under measurement.

    Attributes:
        watch: Compares outputs.
        run: The engine's call.
    """

    watch: OutputWatch
    run: Callable[..., Any]

    def observe(self, outputs: Any) -> None:
        """Compare the outputs of one pass of the workload."""
        for index, output in enumerate(outputs):
            self.watch.observe(index, output)
        self.watch.pass_over()

    def finish(self, trial: Trial, stopwatch: Stopwatch) -> tuple[Trial, Exception | None, list[float]]:
        """Compare as many more calls as an accepted candidate must have behind it, and judge.

        Returns:
            The trial, the exception that it stands for if it is refused, and the seconds that each of these calls took.
        """
        seconds: list[float] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            took, output = stopwatch.time_calls(lambda: self.run(*args, **kwargs), 1)
            seconds.append(took)
            return output

        return *_entered(trial, self.watch.make_up(run, _QUOTA)), seconds


def _entered(trial: Trial, judgement: Judgement) -> tuple[Trial, Exception | None]:
    known = [error for error in (trial.error, judgement.error) if error is not None]
    trial = replace(
        trial,
        error=max(known, default=None),
        error_bound=judgement.bound if judgement.bound is not None else trial.error_bound,
        evidence=tuple(dict.fromkeys((*trial.evidence, *judgement.notes))),
    )
    if judgement.accepted:
        return trial, None
    error = CorrectnessError(trial.backend, judgement.reason)
    error.__cause__ = judgement.cause
    return replace(trial, verdict=judgement.verdict, reason=judgement.reason), error
