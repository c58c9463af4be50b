"""What came of judging one candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aitune.exceptions import said
from aitune.torch.check.compare import Comparison
from aitune.torch.check.subject import Step, Subject
from aitune.torch.trial import Verdict

__all__ = ["Judgement", "accept", "reject", "reject_raised"]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict on a candidate's values, with the evidence. Pickles, without the exception.

    Attributes:
        verdict: ``accepted``, ``wrong``, ``random`` where random numbers are not reproduced, or ``unsupported`` where
            outputs cannot be compared at all.
        reason: Why, in one sentence: the output, the measured error, the bound and the sizes of the inputs.
        error: Relative L2 error of the output nearest to its bound, or beyond it; None where none was
            measured.
        bound: What ``error`` was held against; None where a metric decided.
        eager_error: The module's own relative L2 error against the reference.
        metric: Value of the user's metric for the candidate, None without one.
        calls: Number of calls that were compared.
        notes: What a reader should know beside.
        cause: What the candidate raised, None if it did not.
    """

    verdict: Verdict
    reason: str = ""
    error: float | None = None
    bound: float | None = None
    eager_error: float | None = None
    metric: float | None = None
    calls: int = 0
    notes: tuple[str, ...] = ()
    cause: BaseException | None = None

    @property
    def accepted(self) -> bool:
        """Whether the candidate may go on."""
        return self.verdict is Verdict.accepted

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cause": None}  # exceptions of vendor libraries often do not pickle


def accept(subject: Subject, worst: Comparison, calls: int) -> Judgement:
    """Return the judgement of a candidate that passed.

    Args:
        subject: What it was asked.
        worst: The comparison nearest to its bound.
        calls: Number of calls that were compared.
    """
    return Judgement(
        verdict=Verdict.accepted,
        error=worst.error,
        bound=worst.bound,
        eager_error=subject.eager_error,
        calls=calls,
        notes=subject.notes,
    )


def reject(subject: Subject, found: Comparison, step: Step, calls: int) -> Judgement:
    """Return the judgement of a candidate that did something else than the module in a call."""
    random = subject.random and found.of_values
    prefix = "the module draws random numbers, and the candidate does not reproduce them: " if random else ""
    return Judgement(
        verdict=Verdict.random if random else Verdict.wrong,
        reason=f"{prefix}{found.mismatch}; inputs {step.probe.sizes} ({step.probe.label}), call {calls}",
        error=found.error,
        bound=found.bound,
        eager_error=subject.eager_error,
        calls=calls,
        notes=subject.notes,
    )


def reject_raised(subject: Subject, error: BaseException, step: Step, calls: int) -> Judgement:
    """Return the judgement of a candidate that raised where the module does not."""
    first = (said(error).strip().splitlines() or [""])[0][:200]
    found = Comparison(f"the candidate raised {type(error).__name__}: {first}")
    return replace(reject(subject, found, step, calls), cause=error)
