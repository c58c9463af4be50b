"""The worker that the tunes of a program share: a fresh interpreter takes longer to start than many a build."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from aitune.torch.config import config
from aitune.torch.jit.config import jit_config
from aitune.torch.worker import BuildFolders, Executor, open_executor

__all__ = ["Crew"]

_IDLE_SECONDS = 30.0
"""A worker takes the memory of a process with torch: it is not kept for a tune that may never come."""


class Crew:
    """Lends one executor to tunes that follow each other, and ends its workers once none came for a while.

    Safe for threads; one tune at a time has the executor.

    Args:
        idle_seconds: How long workers wait for another tune.

    Attributes:
        folders: Where the builds of the tune that has the executor put their files; None where none had it lately.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked process, in which neither the workers nor the threads of the parent are."""
        self._lock = threading.Lock()
        self._lent = False
        self._opened = contextlib.ExitStack()
        self._executor: Executor | None = None
        self.folders: BuildFolders | None = None
        self._surroundings: Any = None
        self._clock: threading.Timer | None = None

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """Lend the executor for a tune; None where ``config.isolation`` asks for builds in this process."""
        with self._lock:
            self._stop_clock()
            self._lent = True
        try:
            yield self._fitting()
        finally:
            with self._lock:
                self._lent = False
                if self.folders is not None:
                    self._clock = threading.Timer(self._idle_seconds, self.close)
                    self._clock.name, self._clock.daemon = "aitune-crew", True  # it must not delay an exit
                    self._clock.start()

    def close(self) -> None:
        """End every worker, unless a tune has them: then they end some time after it.

        May be called any number of times.
        """
        with self._lock:
            if not self._lent:
                self._stop_clock()
                self._end()

    def _fitting(self) -> Executor | None:
        """Return the executor, a new one where a worker would start in other surroundings than it did."""
        surroundings = (
            config.isolation, config.max_parallel_builds, jit_config.cache_dir, tuple(sys.path), dict(os.environ)
        )  # fmt: skip
        if surroundings != self._surroundings:
            self._end()
            self.folders = BuildFolders(jit_config.cache_dir)
            self._opened.callback(self.folders.tidy)
            self._executor = self._opened.enter_context(open_executor(self.folders))
            self._surroundings = surroundings
        return self._executor

    def _end(self) -> None:
        self._executor = self.folders = self._surroundings = None
        self._opened.close()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
