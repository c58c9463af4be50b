"""Where candidates are tried, as the configuration says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aitune.exceptions import NotCarriedError
from aitune.torch.config import config
from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.executor import Executor, Workplace
from aitune.torch.worker.folders import BuildFolders
from aitune.torch.worker.process_executor import ProcessExecutor

__all__ = ["open_executor"]


@contextlib.contextmanager
def open_executor(folders: BuildFolders, *, early: bool = False) -> Iterator[Executor | None]:
    """Give the executor of a tune; None where ``config.isolation`` asks for builds in this process.

    Leaving ends its workers.

    Args:
        folders: Where it may put its files.
        early: Whether a worker begins to start at once, so that it is ready when the first candidate is.
    """
    if config.isolation == "none":
        yield None
        return
    with _executor(folders) as executor:
        if early:
            executor.open()
        yield executor


def _executor(folders: BuildFolders) -> Executor:
    hindrance = ProcessExecutor.hindrance()
    if hindrance is not None:
        return _NoExecutor(hindrance)
    return ProcessExecutor(folders, config.max_parallel_builds)


class _NoExecutor(Executor):
    """Stands for workers where this process can have none.

    Args:
        hindrance: Why.
    """

    def __init__(self, hindrance: str) -> None:
        self._hindrance = hindrance

    def workplace(self, assignment: Assignment, seconds: float | None = None) -> Workplace:  # noqa: ARG002
        """Refuse."""
        raise NotCarriedError(f"{self._hindrance}; config.isolation = 'none' builds in this process")

    def close(self) -> None:
        """Do nothing."""
