"""A user's metric, measured for a forward and held against its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check.check import Check
from aitune.torch.graph.graph import GraphSpec

__all__ = ["Routed", "measure_metric", "metric_mismatch"]

_ROUNDING = 1e-9  # of the metrics' size: 0.9 - 0.01 is not 0.89 in floating point


@dataclass(eq=False)
class Routed:
    """A forward that sends the calls of one graph to a candidate and all others to the original.

    Attributes:
        run: The candidate.
        forward: The original.
        graph: Decides which calls are the candidate's.
        served: Number of calls that went to the candidate.
    """

    run: Callable[..., Any]
    forward: Callable[..., Any]
    graph: GraphSpec
    served: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one call, in the form that the candidate takes where it is the candidate's."""
        if not _belongs(self.graph, args, kwargs):
            return self.forward(*args, **kwargs)
        self.served += 1
        arguments = self.graph.signature.bind(args, kwargs)
        positional, named = self.graph.signature.call(arguments, self.graph.form)
        return self.run(*positional, **named)


def measure_metric(check: Check, forward: Callable[..., Any]) -> float:
    """Return the value of a user's metric for a forward.

    Raises:
        AITuneUserInputError: If the metric returns no number.
        Exception: Whatever the metric or the forward raises.
    """
    assert check.metric is not None
    value = check.metric(forward)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise AITuneUserInputError(f"Check: metric must return a number, not {type(value).__qualname__}") from None


def metric_mismatch(check: Check, candidate: float, eager: float) -> str | None:
    """Return why a candidate's metric is not within the budget of eager's, None if it is."""
    assert check.budget is not None
    worse = eager - candidate if check.higher_is_better else candidate - eager
    if math.isfinite(candidate) and worse <= check.budget + _ROUNDING * max(abs(eager), abs(candidate)):
        return None
    return (
        f"the metric is {candidate:.6g}, the module's own is {eager:.6g};"
        f" at most {check.budget:g} {'less' if check.higher_is_better else 'more'} is allowed"
    )


def _belongs(graph: GraphSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        leaves = graph.input_leaves(args, kwargs)
    except TypeError:  # the original raises it again, in its own words
        return False
    if leaves is None or not all(spec.accepts(leaf) for spec, leaf in zip(graph.inputs.leaves, leaves, strict=True)):
        return False
    tensors: tuple[torch.Tensor, ...] = graph.inputs.select_tensors(leaves)
    return graph.sizes(tensors) is not None
