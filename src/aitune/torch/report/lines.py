"""Progress as plain lines, for logs and terminals that can draw nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from aitune.torch.events import Event, Recorded, TrialFinished
from aitune.torch.report.sentences import sentence
from aitune.torch.report.situation import Situation

__all__ = ["PlainProgress"]

_RECORDED_EVERY = 5.0  # seconds between two lines about recorded calls


class PlainProgress:
    """Writes one line for each event that is worth one, with the seconds since it was entered.

    It never raises because of the stream: if that is closed, the rest is not written.

    Args:
        stream: Where to; None writes nothing.
        clock: Returns seconds.
    """

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._situation = Situation(started=clock())
        self._next_recorded = 0.0
        self._unsaid: Recorded | None = None

    def __enter__(self) -> PlainProgress:
        self._situation = Situation(started=self._clock())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream = None

    def __call__(self, event: Event) -> None:
        """Take an event."""
        now = self._clock()
        before, self._situation = self._situation, self._situation.after(event, now)
        if isinstance(event, Recorded):
            if event.calls > 1 and now < self._next_recorded:
                self._unsaid = event
                return
            self._next_recorded = now + _RECORDED_EVERY
        elif self._unsaid is not None:
            self._say(self._unsaid, before, now)
        self._unsaid = None
        self._say(event, before, now)

    def _say(self, event: Event, before: Situation, now: float) -> None:
        text = sentence(event, before)
        if text:
            left = self._situation.left(now) if isinstance(event, TrialFinished) else None
            rest = f"; about {left:.0f} s left" if left else ""
            self._write(f"aitune {self._situation.elapsed(now):6.1f} s  {text}{rest}\n")

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or the reader went away
            self._stream = None
