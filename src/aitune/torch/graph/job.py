"""A job: everything a backend needs to build an engine for one graph of one module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    @property
    def forward(self) -> Callable[..., Any]:
        """The original bound forward, one that was set on the instance included."""
        return self.module.forward
