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
        candidates: How many the graph may have; 0 where that is not known.
        graphs_left: Graphs of the module whose turn has not come.
        tried: Finished trials of all graphs.
        trying_since: When the first graph's turn came; None before.
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
    candidates: int = 0
    graphs_left: int = 0
    tried: int = 0
    trying_since: float | None = None

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
                changes |= {"graph": "", "trials": (), "candidate": "", "candidates": 0, "graphs_left": event.graphs}
            case GraphStarted():
                changes = {"module": event.module, "graph": event.graph, "trials": (), "candidate": ""}
                changes |= {"candidates": event.candidates, "graphs_left": max(self.graphs_left - 1, 0)}
                changes |= {"trying_since": now if self.trying_since is None else self.trying_since}
            case StageStarted():
                changes = {"module": event.module, "graph": event.graph}
                changes |= {"backend": event.backend, "stage": event.stage}
                changes |= {"candidate": event.backend or self.candidate}
            case TrialFinished():
                changes = {"trials": (*self.trials, event.trial), "candidate": "", "tried": self.tried + 1}
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

    def left(self, now: float) -> float | None:
        """Return about how many seconds the trials that are left will take, None while nothing tells.

        Those of other graphs are taken to be as many and as long as those so far. It is never more than the time limit
        leaves.
        """
        if not self.tried or not self.candidates or self.trying_since is None:
            return None
        others = self.graphs_left + max(self.total - self.place - 1, 0)
        trials = max(self.candidates - len(self.trials), 0) + others * self.candidates
        seconds = trials * (now - self.trying_since) / self.tried
        return seconds if self.time_limit is None else min(seconds, max(self.time_limit - self.elapsed(now), 0.0))

    def _tune_started(self, event: TuneStarted, now: float) -> Situation:
        if self.tunes:  # a tune within a tune: the clock and the limit shown are the outer one's
            return dataclasses.replace(self, tunes=self.tunes + 1)
        return Situation(started=now, tunes=1, time_limit=event.time_limit, since=now)
