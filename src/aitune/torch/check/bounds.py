"""How large an error may be: by the precision that a candidate declares, and by how exact eager itself is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check.check import Check
from aitune.torch.check.distance import Yardstick
from aitune.torch.trial import PRECISIONS, Precision

__all__ = ["CEILING", "FLOORS", "Bounds", "Limits"]

FLOORS: Mapping[str, float] = MappingProxyType(
    {
        # float64 outputs that passed through float32 anywhere are off by about 1e-8, so 1e-10 tells the two
        # apart and still leaves half a million units of rounding.
        "float64": 1e-10,
        "float32": 1e-4,
        "tf32": 1e-2,
        "float16": 1e-2,
        "bfloat16": 3e-2,
        "int8": 1e-1,
        "float8": 1e-1,
        "int4": 2e-1,
        "float4": 2e-1,
    }
)
"""Relative L2 error that is allowed whatever eager's own error is, by declared precision."""

_OF_EAGER = 4.0
_SLICE = 4.0
# Rounding errors are close to normal: the largest of 1e8 is 6 standard deviations. 16 leaves room for heavier
# tails, and an element that is wrong by 16 bounds (0.16 % of the output's scale in float32) does not pass,
# however many are right.
_ELEMENT = 16.0

CEILING = 0.9
"""Largest bound that follows from eager's own error: zeros have an error of exactly 1 and must never pass."""


@dataclass(frozen=True)
class Limits:
    """What one output is held to.

    Attributes:
        whole: Relative L2 error of the whole output.
        slices: Error of a slice along the leading axis; where eager's own slice is worse than a quarter, 4
            times that.
        element: Error of one element.
    """

    whole: float
    slices: float
    element: float


@dataclass(frozen=True)
class Bounds:
    """The rule for one candidate.

    Attributes:
        precision: What the candidate declares to compute in.
        floor: Smallest bound.
        fixed: Whether ``floor`` is the user's bound, which nothing raises.
    """

    precision: Precision
    floor: float
    fixed: bool = False

    @classmethod
    def of(cls, precision: Precision, check: Check | None = None) -> Bounds:
        """Return the rule for a declared precision under a user's check.

        Raises:
            AITuneUserInputError: If the precision is none that is known.
        """
        if precision not in FLOORS:
            raise AITuneUserInputError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
        if check is not None and check.max_error is not None:
            return cls(precision, float(check.max_error), fixed=True)
        return cls(precision, FLOORS[precision])

    def limits(self, yard: Yardstick, dtype: torch.dtype) -> Limits:
        """Return what an output is held to.

        Args:
            yard: How exact eager's own output is.
            dtype: Dtype of the output; nobody is asked for more than it can hold.
        """
        if self.fixed:
            return Limits(self.floor, _SLICE * self.floor, _ELEMENT * self.floor)
        floor = max(self.floor, torch.finfo(dtype).eps)
        own = _OF_EAGER * yard.allowance
        whole = max(floor, own if yard.noise else min(own, CEILING))
        return Limits(whole, _SLICE * whole, max(_ELEMENT * whole, _OF_EAGER * yard.element_error))

    def loose(self, yard: Yardstick) -> float | None:
        """Return 4 times eager's own error where ``CEILING`` is less, None where it is not."""
        own = _OF_EAGER * yard.allowance
        return own if own > CEILING and not self.fixed and not yard.noise else None

    def of_slices(self, limits: Limits, own: torch.Tensor) -> torch.Tensor:
        """Return the bound of each slice, where ``own`` is eager's error of each."""
        bound = torch.full_like(own, limits.slices)
        return bound if self.fixed else torch.maximum(bound, _OF_EAGER * own)

    def __str__(self) -> str:
        return "the bound that was set" if self.fixed else self.precision
