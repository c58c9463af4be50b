"""The graphs of a module, which print as a table."""

from __future__ import annotations

from aitune.torch.graph.graph import GraphSpec
from aitune.torch.report import graph_table

__all__ = ["GraphSpecs"]


class GraphSpecs(tuple[GraphSpec, ...]):
    """Graphs in order of appearance; ``print`` shows a table of their inputs, outputs and ranges."""

    __slots__ = ()

    def __str__(self) -> str:
        return graph_table(self)
