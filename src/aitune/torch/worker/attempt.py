"""An attempt at one candidate: what is asked of a worker, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aitune.torch.backend import Backend
from aitune.torch.check import Judgement
from aitune.torch.measure import PairedTiming, ProfilingConfig
from aitune.torch.trial import Precision
from aitune.torch.worker.limits import Limits

__all__ = ["Attempt", "Outcome"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Attempt:
    """One candidate to be built, checked and measured for the first time. Plain data that pickles.

    Attributes:
        backend: The candidate.
        folder: Where its engine files go; made by the worker.
        log: The file that takes everything that the builder prints.
        limits: What it may take.
        profiling: How it is measured against the worker's own eager; None leaves that out.
        min_gain: Gain over eager, as a ratio, that it would have to show.
    """

    backend: Backend[Any]
    folder: Path
    log: Path
    limits: Limits = field(default_factory=Limits)
    profiling: ProfilingConfig | None = None
    min_gain: float = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """What became of an attempt. Plain data that pickles.

    Attributes:
        error: Why there is no engine, or none that is right: an exception that a report can turn into a verdict
            (``CorrectnessError`` with :attr:`judgement` for wrong values; ``NotCarriedError`` where it is the module
            itself that does not run there, which says nothing of the candidate); None where the candidate may go on.
        begun: Whether the candidate was begun; not where time was over before.
        of_the_moment: Whether the error says what the machine lacked, and nothing of the candidate.
        saved: Whether the engine lies in the attempt's folder, from which the backend's ``load`` makes it. Where it
            cannot be kept it was rehearsed, and is built again by whoever wants it.
        precision: The engine's declared precision, None where there is no engine.
        judgement: What came of the check, None where it was left out or not reached.
        timing: The engine against the worker's own eager, None where that was left out or not reached.
        build_seconds: Time of the build alone.
        memory_bytes: By how much the worker's memory grew through the build.
        seconds: Time of everything.
    """

    error: Exception | None = None
    begun: bool = True
    of_the_moment: bool = False
    saved: bool = False
    precision: Precision | None = None
    judgement: Judgement | None = None
    timing: PairedTiming | None = None
    build_seconds: float = 0.0
    memory_bytes: int = 0
    seconds: float = 0.0
