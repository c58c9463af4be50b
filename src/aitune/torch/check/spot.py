"""A look at one call of a program that goes on meanwhile: at what was returned, and at nothing else of the process."""

from __future__ import annotations

from typing import Any

from aitune.torch.check.bounds import Bounds
from aitune.torch.check.compare import compare
from aitune.torch.check.expectation import expect
from aitune.torch.check.outcome import Outcome
from aitune.torch.trial import Precision

__all__ = ["difference"]


def difference(got: Any, wanted: Any, precision: Precision) -> str | None:
    """Return how a candidate's output differs from the module's own for the same call; None if it does not.

    Args:
        got: What the candidate returned.
        wanted: What the module returned.
        precision: What the candidate declares to compute in.
    """
    return compare(Outcome.of_output(got), expect(Outcome.of_output(wanted)), Bounds.of(precision)).mismatch
