"""Graphs as a table: what each takes and returns, with the ranges of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from aitune.torch.graph.graph import GraphSpec

__all__ = ["graph_table"]

_HEADINGS = ("graph", "input", "output")


def graph_table(graphs: Sequence[GraphSpec]) -> str:
    """Return one row a graph, its inputs and outputs below each other; headings alone where there is no graph."""
    rows = [_HEADINGS]
    for graph in graphs:
        inputs = [str(leaf) for leaf in graph.inputs.leaves] or ["nothing"]
        outputs = [str(leaf) for leaf in graph.outputs.leaves] or ["nothing"]
        rows += [
            (name or "", taken or "", returned or "")
            for name, taken, returned in zip_longest([graph.name], inputs, outputs)
        ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows)
