"""A graph with the engine that serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aitune.torch.backend.base import Backend, Engine
from aitune.torch.graph.graph import GraphSpec

__all__ = ["Served"]


@dataclass(frozen=True)
class Served:
    """A graph with the engine that serves it.

    Attributes:
        graph: The graph, with the ranges that were validated.
        engine: The engine, owned by the dispatcher from now on.
        backend: Description of the backend that built it.
        recipe: The backend itself, None for the original.
        put_back: Told why, where the graph turns out to be better off with the original.
    """

    graph: GraphSpec
    engine: Engine
    backend: str
    recipe: Backend[Any] | None = None
    put_back: Callable[[str], None] | None = None
