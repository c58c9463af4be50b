"""What third parties' backends and engines are asked, so that one that fails costs its candidate and nothing else."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from aitune.exceptions import FOREIGN, AITuneError, BackendBuildError, text_of
from aitune.torch.backend.base import Backend, Engine
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.trial import PRECISIONS

__all__ = ["answering_for", "close_engine", "described", "flaw", "said_of"]

_log = logging.getLogger(__name__)

_FLAGS = ("reentrant", "keeps_module", "live_weights", "own_errors")


@contextlib.contextmanager
def answering_for(backend: str, doing: str) -> Iterator[None]:
    """Turn what foreign code raises in the block into an error of the candidate.

    Args:
        backend: Description of the candidate.
        doing: What is asked of it.

    Raises:
        AITuneError: As it was raised.
        BackendBuildError: In place of everything else but ``KeyboardInterrupt``.
    """
    try:
        yield
    except AITuneError:
        raise
    except FOREIGN as error:
        raise BackendBuildError(backend, f"{doing} raised {text_of(error)}") from error


def described(backend: Backend[Any]) -> str:
    """Return the description of a backend, the name of its class where it has none."""
    try:
        return said_of(backend)
    except AITuneError:
        return type(backend).__name__


def said_of(backend: Backend[Any]) -> str:
    """Return what a backend says of itself.

    Raises:
        BackendBuildError: If that is no text.
    """
    name = type(backend).__name__
    with answering_for(name, "describe()"):
        text = backend.describe()
    if not isinstance(text, str):
        raise BackendBuildError(name, f"describe() returned {type(text).__name__}, and has to return a text")
    return text


def close_engine(engine: Engine) -> None:
    """Close an engine; one that cannot be closed is let go of, with a line in the log."""
    try:
        engine.close()
    except FOREIGN as error:
        _log.warning("An engine (%s) cannot be closed: %s", type(engine).__qualname__, text_of(error))


def flaw(engine: Engine, graph: GraphSpec) -> str | None:
    """Return what an engine says of itself that cannot be, None if all of it can.

    Args:
        engine: The engine; its facts may raise.
        graph: The graph that it was built for.
    """
    if engine.precision not in PRECISIONS:
        return f"precision is {engine.precision!r}, and has to be one of {', '.join(PRECISIONS)}"
    for name in _FLAGS:
        if not isinstance(getattr(engine, name), bool):
            return f"{name} is {getattr(engine, name)!r}, and has to be True or False"
    if not isinstance(engine.notes, (tuple, list)) or not all(isinstance(note, str) for note in engine.notes):
        return f"notes is {engine.notes!r}, and has to be a tuple of texts"
    return _flaw_of_ranges(engine.ranges, graph)


def _flaw_of_ranges(ranges: Any, graph: GraphSpec) -> str | None:
    if not isinstance(ranges, Mapping):
        return f"ranges is {ranges!r}, and has to be a mapping"
    for name, sizes in ranges.items():
        dim = graph.dims.get(name)
        if dim is None:
            return f"ranges names {name!r}, which is no dimension of the graph ({', '.join(graph.dims) or 'none'})"
        pair = isinstance(sizes, (tuple, list)) and len(sizes) == 2 and all(type(size) is int for size in sizes)
        if not pair or not dim.min <= sizes[0] <= sizes[1] <= dim.max:
            return f"ranges of {name} is {sizes!r}, and has to be two sizes within {dim.min} and {dim.max}"
    return None
