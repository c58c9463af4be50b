"""An assignment: one graph of a module, as a worker needs it to try candidates."""

from __future__ import annotations

from dataclasses import dataclass

from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample

__all__ = ["Assignment"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Assignment:
    """What all candidates of one graph share. Goes to a worker once.

    Attributes:
        job: The module, the graph and its samples; folder and log are each request's own.
        workload: The calls of one pass of a measurement.
        correctness: Whether values are checked.
        max_error: Bound that the user set in place of that of the precision; None for none.
        values: Whether values are compared with the bound; without, structure, types and finiteness are, as for a
            user's metric, which runs in the user's process alone.
        seed: Seeds synthesised inputs.
    """

    job: Job
    workload: tuple[Sample, ...]
    correctness: bool = True
    max_error: float | None = None
    values: bool = True
    seed: int = 0
