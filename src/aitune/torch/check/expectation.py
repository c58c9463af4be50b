"""What a call is expected to do: eager's outcome, the reference's values, and how exact eager is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from aitune.torch.check.distance import Yardstick
from aitune.torch.check.outcome import Outcome
from aitune.torch.check.yardstick import level, yardstick

__all__ = ["Expectation", "as_numbers", "expect", "levelled"]


@dataclass(frozen=True, eq=False)
class Expectation:
    """What one call is held against.

    Attributes:
        eager: What the module itself did.
        reference: What it did in higher precision; ``eager`` where there is no reference.
        yards: Yardsticks by name of what is compared by distance: outputs, inputs and state.
    """

    eager: Outcome
    reference: Outcome
    yards: Mapping[str, Yardstick]

    @property
    def error(self) -> float:
        """Eager's own largest relative L2 error, outputs that are nothing but rounding left out."""
        return max((yard.error for yard in self.yards.values() if not yard.noise), default=0.0)


def expect(eager: Outcome, reference: Outcome | None = None, rounding: float = 0.0) -> Expectation:
    """Measure an outcome of eager against its reference.

    Args:
        eager: What the module did, with tensors of its own.
        reference: The same in higher precision; structure and shapes agree. None takes eager's.
        rounding: Rounding unit of the reference's precision over that of eager's.
    """
    reference = eager if reference is None else reference
    better = reference.everything
    yards = {}
    for name, value in eager.everything.items():
        own, best = as_numbers(value), as_numbers(better[name])
        if own is not None and best is not None:
            yards[name] = yardstick(own, own if reference is eager else best, rounding)
    return Expectation(eager, reference, yards)


def levelled(expectations: Sequence[Expectation]) -> list[Expectation]:
    """Bring up the yardsticks of outputs of few elements that are near zero by chance in some calls."""
    fresh = [dict(expectation.yards) for expectation in expectations]
    for name in {name for yards in fresh for name in yards}:
        having = [i for i, yards in enumerate(fresh) if name in yards]
        values = (as_numbers(expectations[i].eager.everything[name]) for i in having)
        elements = [0 if value is None else value.numel() for value in values]
        for i, yard in zip(having, level([fresh[i][name] for i in having], elements), strict=True):
            fresh[i][name] = yard
    return [replace(e, yards=yards) for e, yards in zip(expectations, fresh, strict=True)]


def as_numbers(value: Any) -> torch.Tensor | None:
    """Return a value as a tensor to be compared by distance, None for what is compared for equality.

    Floating and complex tensors, numpy arrays, and Python numbers are; integers and bools are not.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        value = torch.from_numpy(np.array(value)) if value.dtype.kind in "fc" else None
    elif isinstance(value, (float, complex)):
        value = torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return value if value.layout is torch.strided else value.detach().to_dense()
