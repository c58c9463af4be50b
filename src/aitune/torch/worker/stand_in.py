"""A stand-in for a module that does not pickle: its exported program, called as the module is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aitune.torch.export.flat import OutputRoutes
from aitune.torch.graph.graph import GraphSpec

__all__ = ["StandIn"]


class StandIn(torch.nn.Module):
    """Computes one graph of a module by its exported program.

    Args:
        graph: The graph.
        routes: Where its outputs come from.
        training: The module's training flag.
    """

    def __init__(self, graph: GraphSpec, routes: OutputRoutes, *, training: bool) -> None:
        super().__init__()
        self._graph = graph
        self._routes = routes
        self.training = training
        self.program: Callable[..., Any] | None = None

    def fill(self, program: torch.nn.Module) -> None:
        """Take the program, which travels apart."""
        del self.program
        self.program = program

    def train(self, mode: bool = True) -> StandIn:
        """Set the flag of this module alone: an exported program has one mode."""
        self.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the module would; calls of other graphs raise."""
        assert self.program is not None
        tensors = self._graph.input_tensors(args, kwargs)
        computed = self.program(*tensors)
        return self._graph.output(self._routes.outputs(list(computed), tensors))
