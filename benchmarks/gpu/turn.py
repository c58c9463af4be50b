"""Taking turns: many processes build at once, and one of them at a time measures."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["Turn", "alone", "until_go"]


LOCK = "AITUNE_GPU_BENCHMARK_LOCK"
"""Names a lock file that several runs on one device share."""
_PATIENCE = 45.0


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process measures, and keep the others waiting; none waits for ever for one that hangs."""
    with Path(os.environ.get(LOCK, folder / "lock")).open("w") as file:
        end = time.monotonic() + _PATIENCE
        while not _taken(file) and time.monotonic() < end:
            time.sleep(0.05)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def until_go(folder: Path) -> None:
    """Wait until all processes of the folder have built, or have had their time."""
    while not (folder / "go").exists():
        time.sleep(0.05)


class Turn:
    """Follows a tune as its progress: whatever comes after a build is done alone.

    Args:
        folder: Shared by all processes that take turns.
        name: Of this one.
        wait: Whether the first measurement waits until all have been built, for the file ``go``.
    """

    def __init__(self, folder: Path, name: str, *, wait: bool) -> None:
        self._folder, self._name, self._wait = folder, name, wait
        self._stack = contextlib.ExitStack()
        self._mine = False

    def __call__(self, event: Any) -> None:
        if type(event).__name__ != "StageStarted":
            return
        if event.stage == "build":
            self._give_up()
        elif not self._mine:
            if self._wait and event.stage != "batch size":
                self._wait_for_the_others()
            self._stack.enter_context(alone(self._folder))
            self._mine = True

    def close(self) -> None:
        self._built()
        self._give_up()

    def _give_up(self) -> None:
        self._stack.close()
        self._mine = False

    def _built(self) -> None:
        (self._folder / f"{self._name}.built").touch()

    def _wait_for_the_others(self) -> None:
        self._built()
        until_go(self._folder)
