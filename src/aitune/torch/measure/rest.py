"""The pause before something is timed, in which the threads of what ran before come to rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from aitune.torch.measure.clock import Clock

__all__ = ["Rest"]

_LONGEST = 0.5  # seconds; ONNX Runtime's threads wait for work for a twentieth of a second up to that
_PATIENCE = 3  # pauses in which other threads never rested, after which they are taken for those of the program


@dataclass
class Rest:
    """Pauses until no other thread of the process runs: threads that wait for work by spinning slow others down.

    Threads of the program itself may never rest; then it pauses shortly from the third time on.

    Args:
        clock: Where time comes from.
        seconds: The least pause; 0 for none at all.
    """

    clock: Clock
    seconds: float
    _restless: int = field(default=0, init=False)

    def take(self) -> None:
        """Pause."""
        if not self.seconds:
            return
        self.clock.sleep(self.seconds)
        if self._restless >= _PATIENCE:
            return
        end = self.clock.now() + _LONGEST
        while self.clock.others_run():
            if self.clock.now() >= end:
                self._restless += 1
                return
            self.clock.sleep(self.seconds)
        self._restless = 0
