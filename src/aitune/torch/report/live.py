"""Progress drawn on a terminal while it happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from aitune.torch.events import Event, GraphChosen, ModuleFinished, Note
from aitune.torch.report.detour import detour
from aitune.torch.report.panel import Panel
from aitune.torch.report.region import Region
from aitune.torch.report.sentences import sentence
from aitune.torch.report.situation import Situation

__all__ = ["LiveProgress"]

_TICK = 0.25
# Drawing takes about a millisecond of the interpreter: as good as never while calls are being timed.
_QUIET_TICK = 2.0
_QUIET_STAGES = ("measure", "batch size", "end to end")


class LiveProgress:
    """Shows where a tune stands in the lowest lines of a terminal.

    Those are module, graph, candidate, stage, elapsed time, and the verdicts so far. Use it as a context
    manager and call it with events, from any thread. What the program prints or logs in the meantime appears
    above. Chosen backends, failures and notes stay on the screen as lines; the rest is gone when the block
    ends, however it ends. The cursor is never hidden. If the terminal goes away, nothing more is drawn and
    nothing is raised.

    Args:
        stream: The terminal.
        clock: Returns seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._situation = Situation(started=clock())
        self._lock = threading.RLock()
        self._open = contextlib.ExitStack()
        self._done = threading.Event()
        self._region = Region(stream)
        self._panel = Panel(stream)

    def __enter__(self) -> LiveProgress:
        self._situation = Situation(started=self._clock())
        with contextlib.ExitStack() as opened:  # closes again what was opened if Ctrl-C comes here
            opened.callback(self._region.close)
            opened.enter_context(detour(self._region))
            ticker = threading.Thread(target=self._tick, name="aitune-progress", daemon=True)
            ticker.start()
            opened.callback(ticker.join, 1.0)
            opened.callback(self._done.set)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def __call__(self, event: Event) -> None:
        """Take an event."""
        with self._lock:
            before, self._situation = self._situation, self._situation.after(event, self._clock())
        if isinstance(event, (GraphChosen, ModuleFinished, Note)):
            text = sentence(event, before)
            if text:
                self._region.say(text)
        self._draw()

    def _tick(self) -> None:
        while not self._done.wait(_QUIET_TICK if self._situation.stage in _QUIET_STAGES else _TICK):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._done.is_set():
                width, height = _size(self._stream)
                self._region.show(self._panel.lines(self._situation, self._clock(), width, height - 1))


def _size(stream: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (AttributeError, ValueError, OSError):
        size = os.terminal_size((0, 0))
    # A pseudo-terminal that nobody has told its size says 0.
    return size if size.columns and size.lines else shutil.get_terminal_size((80, 24))
