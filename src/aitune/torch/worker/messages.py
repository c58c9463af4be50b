"""What a worker is told and what it answers: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aitune.torch.worker.attempt import Outcome

__all__ = ["Answer", "Bring", "Failure", "Go", "MakeReference", "Ready", "Release", "Stage", "Try", "Turn"]


@dataclass(frozen=True, kw_only=True)
class Bring:
    """Take an assignment up.

    Attributes:
        cargo: Folder in which it was packed.
        files: File of each Python module that a fresh interpreter does not find by its name.
        ambient: Settings of torch to work under (an ``Ambient``).
    """

    cargo: Path
    files: Mapping[str, str]
    ambient: Any


@dataclass(frozen=True)
class MakeReference:
    """Run the module and its copy in higher precision; the answer lies in the cargo's folder.

    Attributes:
        seconds: Time after which the rest is left out.
    """

    seconds: float | None


@dataclass(frozen=True)
class Try:
    """Carry an attempt out.

    Attributes:
        attempt: The attempt, as cloudpickle wrote it: a backend that cannot be read is its own failure.
        in_turn: Whether to ask for a turn (:class:`Turn`) when the engine is built, before it is checked and measured.
    """

    attempt: bytes
    in_turn: bool = False


@dataclass(frozen=True)
class Turn:
    """The engine is built: the worker waits until it is told to :class:`Go` on."""


@dataclass(frozen=True)
class Go:
    """Nothing else is at work: check and measure."""


@dataclass(frozen=True)
class Release:
    """Let go of the assignment."""


@dataclass(frozen=True)
class Ready:
    """The worker listens."""


@dataclass(frozen=True)
class Stage:
    """What the worker is doing now.

    Attributes:
        name: Such as ``build``.
    """

    name: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception, in a form that always arrives.

    Attributes:
        kind: Name of its type.
        module: Import name of the module that defines the type.
        text: Its message.
        pickled: The exception itself, None where it does not pickle.
        out_of_memory: Whether it says that memory ran out.
        of_the_moment: Whether it says what the machine lacked.
    """

    kind: str
    module: str
    text: str
    pickled: bytes | None
    out_of_memory: bool
    of_the_moment: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        outcome: That of an attempt, without its error.
        failure: Why the request could not be met, or the error of the outcome.
        worn: Whether memory was lost that only the end of the process gives back.
    """

    outcome: Outcome | None = None
    failure: Failure | None = None
    worn: bool = False
