"""A job: everything a backend needs to build an engine for one graph of one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """One build to do. Pickles wherever the module does.

    Attributes:
        name: Name of the module being tuned.
        module: The user's own module; a build leaves it as it was.
        graph: The graph to serve.
        samples: Recorded calls of the graph, at least one; to be copied before they are passed to anything.
        device: Where the module is.
        folder: A folder of this build alone, for engine files.
        log: The file that takes the builder's own output.
    """

    name: str
    module: torch.nn.Module
    graph: GraphSpec
    samples: tuple[Sample, ...]
    device: torch.device
    folder: Path
    log: Path

    def narrowed(self, ranges: Mapping[str, tuple[int, int]]) -> Job:
        """Return the job of a part of the graph: smaller ranges, and those samples that lie within them.

        Where no sample does, the first one is brought to sizes that do.

        Args:
            ranges: As :meth:`~aitune.torch.graph.graph.GraphSpec.narrowed`.
        """
        if not ranges:
            return self
        samples = tuple(sample for sample in self.samples if self.graph.lies_within(sample, ranges))
        if not samples:
            first = self.samples[0]
            sizes = self.graph.sizes(self.graph.input_tensors(first.args, first.kwargs)) or {}
            fitting = {name: min(max(sizes.get(name, low), low), high) for name, (low, high) in ranges.items()}
            samples = (self.graph.resized(first, fitting),)
        return replace(self, graph=self.graph.narrowed(ranges), samples=samples)

    @property
    def forward(self) -> Callable[..., Any]:
        """The original bound forward, one that was set on the instance included."""
        return self.module.forward
