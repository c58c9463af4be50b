"""The pause before something is timed, in which the threads of what ran before come to rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from aitune.torch.measure.clock import Clock

__all__ = ["Rest"]

_LONGEST = 0.5  # seconds; ONNX Runtime's threads wait for work for a twentieth of a second up to that
_AT_REST = 0.5  # processors in use on average; a thread that spins takes one
_PATIENCE = 3  # pauses in which other threads never rested, after which they are taken for those of the program


@dataclass
class Rest:
    """Pauses until no thread of the process works any more: threads that wait for work by spinning slow others down.

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
        end = self.clock.now() + (_LONGEST if self._restless < _PATIENCE else 0.0)
        while self.seconds:
            before, used = self.clock.now(), self.clock.used()
            self.clock.sleep(self.seconds)
            now = self.clock.now()
            if self.clock.used() - used <= _AT_REST * (now - before):
                self._restless = 0 if self._restless < _PATIENCE else self._restless
                return
            if now >= end:
                self._restless += 1
                return
