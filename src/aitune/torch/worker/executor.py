"""The executor interface: where candidates are tried before this process lets them in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType

from aitune.torch.check import Reference
from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.attempt import Attempt, Outcome

__all__ = ["Executor", "Workplace"]


class Workplace(ABC):
    """A place, outside this process, where candidates of one graph are tried. A context manager.

    Whatever a candidate does there, the methods return within its limits, or raise what is said below.
    ``KeyboardInterrupt`` passes, with everything that was started there ended.
    """

    @abstractmethod
    def reference(self, seconds: float | None = None) -> Reference:
        """Return what the module computes in a higher precision, for each recorded sample and synthesised input.

        Args:
            seconds: Time for it; then, or where it cannot be made, it is the eager one with the reason.
        """

    @abstractmethod
    def attempt(self, attempt: Attempt) -> Outcome:
        """Build, check and measure a candidate; a failure of any kind is an outcome with an error."""

    def attempts(self, attempts: Sequence[Attempt]) -> Iterator[Outcome]:
        """Carry out several attempts, and yield their outcomes in order.

        Where a place can build several at once it does; whatever it builds, checks and measurements are alone.
        """
        for attempt in attempts:
            yield self.attempt(attempt)

    @abstractmethod
    def close(self) -> None:
        """Let go of the graph; calling it twice is allowed."""

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Executor(ABC):
    """Makes workplaces, in processes of this machine or on others. A context manager: leaving it ends them all.

    Attributes:
        parallel: How many candidates of :meth:`Workplace.attempts` it builds at once.
    """

    parallel: int = 1

    def open(self) -> None:  # noqa: B027 - an executor that has nothing to get ready needs none
        """Begin to get ready, without waiting for it; calling it twice is allowed."""

    @abstractmethod
    def workplace(self, assignment: Assignment, seconds: float | None = None) -> Workplace:
        """Bring a graph to a worker.

        Args:
            assignment: The graph.
            seconds: When everything is over, for what is no candidate's own: getting a worker ready, bringing the graph
                there, now and whenever a worker is replaced. None for no limit.

        Raises:
            NotCarriedError: If neither the module nor its exported program can travel, with the reason.
        """

    @abstractmethod
    def close(self) -> None:
        """End every process that was started, and their children; calling it twice is allowed."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
