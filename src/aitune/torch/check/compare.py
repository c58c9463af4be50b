"""Whether one call did what it was expected to: structure, types, effects, places of NaN, values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aitune.torch.check.bits import same_form
from aitune.torch.check.bounds import Bounds
from aitune.torch.check.expectation import Expectation, as_numbers
from aitune.torch.check.facts import Facts
from aitune.torch.check.outcome import Outcome
from aitune.torch.check.state import REMOVED
from aitune.torch.check.structure import structure_mismatch
from aitune.torch.check.value import Finding, compare_exactly, compare_numbers, compare_places

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """What came of comparing one call.

    Attributes:
        mismatch: What is wrong, a sentence that begins with where; None if nothing is.
        error: Relative L2 error of the output that is nearest to its bound or beyond it; None where none was
            measured.
        bound: What ``error`` was held against.
        where: The output that they belong to.
        of_values: Whether the mismatch is one of values alone, which random numbers could explain.
    """

    mismatch: str | None = None
    error: float | None = None
    bound: float | None = None
    where: str = ""
    of_values: bool = False

    @property
    def ratio(self) -> float:
        """Error over bound, the error alone where there is no bound, -1 where nothing was measured."""
        if self.error is None:
            return -1.0
        if self.bound is None:
            return self.error
        return self.error / self.bound if self.bound else math.inf if self.error else 0.0


def compare(got: Outcome, expected: Expectation, bounds: Bounds, *, values: bool = True) -> Comparison:
    """Compare what a call did with what it was expected to do.

    Args:
        got: What it did.
        expected: What the module does.
        bounds: The rule for the candidate.
        values: Whether values matter; without, a user's metric judges them and everything else is compared
            here.

    Returns:
        The first mismatch, or the output nearest to its bound.
    """
    eager = expected.eager
    mismatch = structure_mismatch(got.structure, eager.structure) or _effects(got, eager)
    if mismatch is not None:
        return Comparison(mismatch)
    own, best = eager.everything, expected.reference.everything
    facts = dict(zip(got.outputs, zip(got.facts, eager.facts, strict=True), strict=True))
    worst = Comparison()
    for name, value in got.everything.items():
        form = _form(value, own[name], *facts.get(name, (None, None)))
        if form is not None:
            return Comparison(f"{name} {form}", where=name)
        yard = expected.yards.get(name)
        numbers, eagers, better = (as_numbers(x) if yard is not None else None for x in (value, own[name], best[name]))
        if yard is None or numbers is None or eagers is None or better is None:
            found = compare_exactly(value, own[name]) if values or name not in facts else Finding()
        elif values:
            found = compare_numbers(numbers, better, eagers, yard, bounds)
        else:
            found = compare_places(numbers, better, eagers, yard)
        if found.mismatch is not None:
            return Comparison(f"{name} {found.mismatch}", found.error, found.bound, name, of_values=True)
        worst = max(worst, Comparison(None, found.error, found.bound, name), key=lambda one: one.ratio)
    return worst


def _effects(got: Outcome, eager: Outcome) -> str | None:
    """Return which side effect is there and should not be, or the other way round."""
    for word, mine, theirs in (("input", got.inputs, eager.inputs), ("module's", got.state, eager.state)):
        added = next((path for path in mine if path not in theirs), None)
        if added is not None:
            return f"the {word} {added} is changed by the call, the module leaves it alone"
        missing = next((path for path in theirs if path not in mine), None)
        if missing is not None:
            return f"the {word} {missing} is not changed by the call, the module changes it"
    settings = [name for name in got.settings if name not in eager.settings]
    if settings:
        return f"the {', '.join(settings)} of the process is left changed by the call"
    shared = sorted(got.shared - eager.shared)
    return f"{shared[0]} share memory, those of the module do not" if shared else None


def _form(value: Any, own: Any, facts: Facts | None, own_facts: Facts | None) -> str | None:
    """Return how a value is of another kind than eager's, as the end of a sentence."""
    tensors = isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)  # kept ones are no Parameters any more
    if type(value) is not type(own) and not tensors:
        return f"is {_kind(value)}, the module's is {_kind(own)}"
    if facts is not None and own_facts is not None:
        return facts.mismatch(own_facts)
    if tensors and not same_form(value, own):
        return f"is {_describe(value)}, the module's is {_describe(own)}"
    if isinstance(value, np.ndarray) and (value.dtype != own.dtype or value.shape != own.shape):
        return f"is {value.dtype}{list(value.shape)}, the module's is {own.dtype}{list(own.shape)}"
    return None


def _kind(value: Any) -> str:
    return "nothing" if value is REMOVED else f"a {type(value).__qualname__}"


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
