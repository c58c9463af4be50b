"""What happens while tuning, as typed events. Publishing does no I/O of its own; reports listen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from aitune.torch.trial import Trial

__all__ = [
    "Event",
    "GraphChosen",
    "GraphStarted",
    "ModuleFinished",
    "ModuleStarted",
    "Note",
    "Recorded",
    "StageStarted",
    "TrialFinished",
    "TuneFinished",
    "TuneStarted",
    "listening",
    "publish",
]


@dataclass(frozen=True)
class Event:
    """Base of everything that happens."""


@dataclass(frozen=True)
class TuneStarted(Event):
    """A tune began; calls are recorded next.

    Attributes:
        time_limit: Seconds it may take, None for no limit.
    """

    time_limit: float | None = None


@dataclass(frozen=True)
class Recorded(Event):
    """One more call of the tuned function was recorded.

    Attributes:
        calls: Calls so far.
        batch_size: Batch size of the call, None where it is not known.
    """

    calls: int
    batch_size: int | None


@dataclass(frozen=True)
class ModuleStarted(Event):
    """A module's turn came.

    Attributes:
        module: Its name.
        index: Its place, from 0.
        total: How many there are.
        graphs: How many graphs it has.
    """

    module: str
    index: int
    total: int
    graphs: int


@dataclass(frozen=True)
class GraphStarted(Event):
    """A graph's turn came.

    Attributes:
        module: Name of the module.
        graph: Name of the graph.
        description: Its inputs and outputs in one line.
        candidates: How many candidates its strategy may try.
    """

    module: str
    graph: str
    description: str
    candidates: int = 0


@dataclass(frozen=True)
class StageStarted(Event):
    """A candidate entered a stage.

    Attributes:
        module: Name of the module.
        graph: Name of the graph.
        backend: Description of the candidate; empty for work on the original.
        stage: Such as ``reference``, ``build``, ``check``, ``measure``, ``batch size``.
    """

    module: str
    graph: str
    backend: str
    stage: str


@dataclass(frozen=True)
class TrialFinished(Event):
    """A candidate has its verdict."""

    module: str
    graph: str
    trial: Trial


@dataclass(frozen=True)
class GraphChosen(Event):
    """A graph has its engine, or stays with the original.

    Attributes:
        module: Name of the module.
        graph: Name of the graph.
        chosen: Description of the chosen backend.
    """

    module: str
    graph: str
    chosen: str


@dataclass(frozen=True)
class ModuleFinished(Event):
    """A module is tuned, or was left as it was."""

    module: str
    failure: str | None = None


@dataclass(frozen=True)
class Note(Event):
    """Something that a person who watches should read."""

    text: str


@dataclass(frozen=True)
class TuneFinished(Event):
    """A tune ended.

    Attributes:
        seconds: How long it took.
    """

    seconds: float


Listener = Callable[[Event], None]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("aitune_listeners", default=())


@contextlib.contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Pass every event of this context to ``listeners`` until the block ends."""
    token = _listeners.set((*_listeners.get(), *listeners))
    try:
        yield
    finally:
        _listeners.reset(token)


def publish(event: Event) -> None:
    """Pass an event to whoever listens; a listener's exception goes to the publisher."""
    for listener in _listeners.get():
        listener(event)
