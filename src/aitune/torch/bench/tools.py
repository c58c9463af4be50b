"""What a bench works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aitune.torch.backend import Engine
from aitune.torch.bench.shelf import Shelf
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.measure import Stopwatch
from aitune.torch.worker import BuildFolders, Executor, Limits

__all__ = ["Path", "Tools"]


@dataclass(frozen=True)
class Path:
    """The way that a user's call takes to an engine.

    Attributes:
        call: Takes the call.
        fallbacks: Tells how many calls the original answered instead, by reason.
    """

    call: Callable[..., Any]
    fallbacks: Callable[[], Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a bench works with.

    Attributes:
        original: The call that a candidate would replace, the user's own path with hooks.
        route: Makes, of a graph and an engine, the call path that users will take; dispatch is part of what is timed.
        folders: Where builds put their files.
        executor: Where candidates are tried before this process lets them in; None builds everything in this process.
        limits: What each candidate may take there.
        stopwatch: How time is read.
        deadline: Reading of the stopwatch's clock after which no candidate is begun; None for none.
        seed: Seeds synthesised inputs.
        shelf: What earlier tunes found out, and where findings go; None does without.
    """

    original: Callable[..., Any]
    route: Callable[[GraphSpec, Engine], Path]
    folders: BuildFolders
    executor: Executor | None = None
    limits: Limits = field(default_factory=Limits)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    deadline: float | None = None
    seed: int = 0
    shelf: Shelf | None = None
