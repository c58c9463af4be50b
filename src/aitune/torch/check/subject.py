"""The subject of an examination: one graph of a module, with the questions and the module's own answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.check.check import Check
from aitune.torch.check.expectation import Expectation
from aitune.torch.check.inputs import Probe
from aitune.torch.check.reference import Reference
from aitune.torch.check.rng import RngState
from aitune.torch.check.state import Snapshot
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.trial import Verdict

__all__ = ["Step", "Subject"]


@dataclass(frozen=True, eq=False)
class Step:
    """One call that a candidate is asked to make.

    Attributes:
        probe: The inputs.
        expectation: What the module does at this point.
        reset: Whether module and random numbers are put back to the beginning before it.
        scribble: Whether what earlier steps returned is overwritten before it, as a caller may do.
    """

    probe: Probe
    expectation: Expectation
    reset: bool
    scribble: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """What every candidate of one graph is asked. Made once by :func:`~aitune.torch.check.prepare.prepare`.

    Attributes:
        module: The user's own module.
        forward: Its original forward.
        graph: The graph that candidates serve.
        steps: The calls, in order.
        reference: What outcomes are compared with; its ``kind`` and ``reason`` belong on the record.
        rng: State of the random number generators from which calls start.
        warm: State of the module from which calls start where that is not its present one: caches that a
            forward fills by itself are filled.
        stateful: Whether calls change the module.
        random: Whether outputs depend on random numbers.
        unjudgeable: Why no candidate can be judged, None if they can.
        unjudgeable_as: The verdict on all of them then.
        own_sharing: Outputs (by position) that the module itself hands out more than once in the same memory.
        check: The user's check.
        metric: Eager's value of the user's metric, None without one.
        notes: What a reader should know, such as sizes that were left out.
        foreign: How the module of a reference that was made elsewhere differs from this one, None if it does not.
    """

    module: torch.nn.Module
    forward: Callable[..., Any]
    graph: GraphSpec
    steps: tuple[Step, ...]
    reference: Reference
    rng: RngState
    warm: Snapshot | None = None
    stateful: bool = False
    random: bool = False
    unjudgeable: str | None = None
    unjudgeable_as: Verdict = Verdict.random
    own_sharing: frozenset[int] = frozenset()
    check: Check | None = None
    metric: float | None = None
    notes: tuple[str, ...] = ()
    foreign: str | None = None

    @property
    def eager_error(self) -> float:
        """Largest relative L2 error of the module's own outputs against the reference."""
        return max((step.expectation.error for step in self.steps), default=0.0)

    @property
    def mutating(self) -> bool:
        """Whether calls change their inputs."""
        return any(step.expectation.eager.inputs for step in self.steps)

    @property
    def repeatable(self) -> bool:
        """Whether equal inputs give equal outputs at any time, so that any call can be compared."""
        return not self.stateful and not self.random
