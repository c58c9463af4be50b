"""What a user may set about the value check: a bound of their own, or a metric with a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aitune.exceptions import AITuneUserInputError

__all__ = ["Check"]

_INT8_ERROR = 0.05


@dataclass(frozen=True)
class Check:
    """How the outputs of candidates are judged; ``Check()``, the default, goes by the candidate's precision.

    Args:
        max_error: Largest relative L2 error of an output, in place of the bound that follows from the
            precision and from eager's own error. 0 asks for equal values.
        metric: ``metric(forward) -> float`` runs a callable with the module's signature over data of its own.
            It replaces the comparison of values; structure, types, shapes and the places of NaN and infinity
            are compared as ever.
        budget: By how much the candidate's metric may be worse than eager's, in units of the metric.
        higher_is_better: Whether a larger metric is the better one; False for losses and perplexities.

    Raises:
        AITuneUserInputError: If a value is out of range, or ``max_error`` and ``metric`` are both given, or
            one of ``metric`` and ``budget`` without the other.
    """

    max_error: float | None = None
    metric: Callable[[Callable[..., Any]], float] | None = None
    budget: float | None = None
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if self.max_error is not None and self.metric is not None:
            raise AITuneUserInputError("Check: max_error and metric exclude each other; a metric replaces the bound")
        if self.metric is not None and not callable(self.metric):
            raise AITuneUserInputError(
                f"Check: metric must be a function of a forward that returns a number, not {self.metric!r}"
            )
        if self.metric is not None and self.budget is None:
            raise AITuneUserInputError("Check: a metric needs a budget, by how much it may get worse; 0 is allowed")
        if self.budget is not None and self.metric is None:
            raise AITuneUserInputError(
                "Check: a budget needs a metric; for a bound on the error of outputs use max_error"
            )
        if not isinstance(self.higher_is_better, bool):
            raise AITuneUserInputError(f"Check: higher_is_better is True or False, not {self.higher_is_better!r}")
        for name in ("max_error", "budget"):
            _require_size(name, getattr(self, name))

    @property
    def allows_int8(self) -> bool:
        """Whether the user accepts what 8 bits cost: by a metric with a budget, or by a bound that is wide enough.

        The bound of int8 starts at 0.1 by itself; half of it is what good quantisations stay within.
        """
        return self.metric is not None or (self.max_error is not None and self.max_error >= _INT8_ERROR)


def _require_size(name: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise AITuneUserInputError(f"Check: {name} must be a finite number of at least 0, not {value!r}")
