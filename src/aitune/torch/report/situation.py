"""Where a tune stands, worked out from its events; what a live display draws."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from aitune.torch.events import (
    Event,
    GraphChosen,
    GraphStarted,
    ModuleFinished,
    ModuleStarted,
    Recorded,
    StageStarted,
    TrialFinished,
    TuneFinished,
    TuneStarted,
)
from aitune.torch.trial import Trial

__all__ = ["Situation"]


@dataclass(frozen=True)
class Situation:
    """What is going on, at one moment. Times are those of one clock, in seconds.

    Attributes:
        started: When the tune began.
        tunes: How many tunes are running, one inside the other.
        time_limit: Seconds that the outermost may take.
        calls: Calls recorded so far.
        module: Whose turn it is; empty while calls are recorded.
        place: Its place, from 0.
        total: How many modules there are.
        graph: Which of its graphs.
        backend: The candidate that is being tried; empty for work on the original.
        stage: What is being done; empty between stages.
        since: When the stage began.
        candidate: The latest candidate that was named and has no verdict yet.
        trials: Finished trials of the graph.
    """

    started: float
    tunes: int = 0
    time_limit: float | None = None
    calls: int = 0
    module: str = ""
    place: int = 0
    total: int = 0
    graph: str = ""
    backend: str = ""
    stage: str = ""
    since: float = 0.0
    candidate: str = ""
    trials: tuple[Trial, ...] = ()

    def after(self, event: Event, now: float) -> Situation:
        """Return the situation that ``event`` leads to; events that change nothing return this one."""
        changes: dict[str, Any] = {}
        match event:
            case TuneStarted():
                return self._tune_started(event, now)
            case Recorded():
                return dataclasses.replace(self, calls=event.calls)
            case ModuleStarted():
                changes = {"module": event.module, "place": event.index, "total": event.total}
                changes |= {"graph": "", "trials": (), "candidate": ""}
            case GraphStarted():
                changes = {"module": event.module, "graph": event.graph, "trials": (), "candidate": ""}
            case StageStarted():
                changes = {"module": event.module, "graph": event.graph}
                changes |= {"backend": event.backend, "stage": event.stage}
                changes |= {"candidate": event.backend or self.candidate}
            case TrialFinished():
                changes = {"trials": (*self.trials, event.trial), "candidate": ""}
            case TuneFinished():
                changes = {"tunes": max(self.tunes - 1, 0)}
            case GraphChosen() | ModuleFinished():
                pass
            case _:
                return self
        return dataclasses.replace(self, **{"backend": "", "stage": "", "since": now, **changes})

    def elapsed(self, now: float) -> float:
        """Seconds since the tune began."""
        return max(now - self.started, 0.0)

    def _tune_started(self, event: TuneStarted, now: float) -> Situation:
        if self.tunes:  # a tune within a tune: the clock and the limit shown are the outer one's
            return dataclasses.replace(self, tunes=self.tunes + 1)
        return Situation(started=now, tunes=1, time_limit=event.time_limit, since=now)
