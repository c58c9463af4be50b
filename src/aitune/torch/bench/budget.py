"""The time that trials may take together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aitune.torch.measure import Clock, ProfilingConfig

__all__ = ["Budget"]

_SHORTEST = 0.01  # of a measurement that comes too late to tell anything, in seconds


@dataclass(frozen=True)
class Budget:
    """How long trials may go on.

    Attributes:
        clock: Where time is read.
        ends: Readings of the clock at which time is over, with the name of the limit of each.
    """

    clock: Clock
    ends: tuple[tuple[float, str], ...] = ()

    @classmethod
    def starting(cls, clock: Clock, deadline: float | None, limit: float | None) -> Budget:
        """Return the budget of a graph whose trials begin now.

        Args:
            clock: Where time is read.
            deadline: Reading at which the whole tune is over; None for never.
            limit: Seconds that the strategy allows; None for no limit.
        """
        ends = []
        if deadline is not None:
            ends.append((deadline, "the time limit of the tune was reached"))
        if limit is not None:
            ends.append((clock.now() + limit, f"the strategy's time limit of {limit:g} s was reached"))
        return cls(clock, tuple(ends))

    def left(self) -> float | None:
        """Return the seconds that are left, at least 0; None where there is no limit."""
        return max(0.0, min(end for end, _ in self.ends) - self.clock.now()) if self.ends else None

    def over(self) -> str | None:
        """Return which limit was reached, None while there is time."""
        now = self.clock.now()
        return next((name for end, name in self.ends if now >= end), None)

    def at_most(self, seconds: float | None) -> float | None:
        """Return ``seconds`` or what is left, whichever is less; None for no limit."""
        left = self.left()
        return seconds if left is None else left if seconds is None else min(seconds, left)

    def fitted(self, profiling: ProfilingConfig) -> ProfilingConfig:
        """Return how to measure within what is left."""
        left = self.left()
        if left is None or left >= profiling.max_seconds:
            return profiling
        return replace(profiling, max_seconds=max(left, _SHORTEST))
