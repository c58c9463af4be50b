"""A stopwatch: a clock that is read only when the device has finished what it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aitune.torch.measure.clock import Clock, SystemClock

__all__ = ["Stopwatch"]


@dataclass(frozen=True)
class Stopwatch:
    """Reads a clock around work that may run asynchronously on a device.

    Args:
        clock: Where time comes from.
        synchronize: Waits until the device is idle, such as ``torch.cuda.synchronize``; None where a call
            returns only after its work is done.
    """

    clock: Clock = field(default_factory=SystemClock)
    synchronize: Callable[[], None] | None = None

    def read(self) -> float:
        """Wait for the device, then return the time in seconds."""
        if self.synchronize is not None:
            self.synchronize()
        return self.clock.now()

    def time_calls(self, call: Callable[[], object], count: int) -> tuple[float, object]:
        """Call ``count`` times, at least once, between two readings.

        Returns:
            Seconds for all calls together, and the output of the last one.
        """
        start = self.read()
        output = repeat(call, count)
        return self.read() - start, output


def repeat(call: Callable[[], object], count: int) -> object:
    """Call ``count`` times, at least once; only the last output outlives its call, and is returned."""
    for _ in range(count - 1):
        call()
    return call()
