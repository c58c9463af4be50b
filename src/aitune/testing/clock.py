"""A clock whose time moves only by fake work, with the disturbances of real machines."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Disturbance", "FakeClock"]

_Output = TypeVar("_Output")


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """How a machine departs from a quiet one. The default is perfectly quiet.

    Args:
        noise: Standard deviation of the logarithm of the factor by which work takes longer or shorter; 0.01
            is 1 %.
        noise_hold: Seconds for which one draw of the noise holds; 0 draws for each piece of work.
        drift: Relative change per second of the time that work takes; 0.01 makes it 1 % slower each second.
        burst_rate: Stalls per second of work, at random moments.
        burst_seconds: Length of one stall, in seconds.
        ramp_factor: How many times longer work takes at time 0, falling linearly to 1 (a processor raising
            its clock).
        ramp_seconds: How long that takes, in seconds.
    """

    noise: float = 0.0
    noise_hold: float = 0.0
    drift: float = 0.0
    burst_rate: float = 0.0
    burst_seconds: float = 0.008
    ramp_factor: float = 1.0
    ramp_seconds: float = 1.0


class FakeClock:
    """Virtual time for tests of whatever decides by time; satisfies ``aitune.torch.measure.Clock``.

    Two clocks with the same arguments that do the same work show the same times. Not safe for threads.

    Args:
        seed: Seeds the disturbances.
        disturbance: None for a perfectly quiet machine.
        resolution: Seconds to which ``now`` is rounded down; 0 for no rounding.
    """

    def __init__(self, seed: int = 0, disturbance: Disturbance | None = None, resolution: float = 0.0) -> None:
        # A stream of its own: code under test that seeds with the same number must not foresee the noise.
        self._random = random.Random(f"fake clock {seed}")
        self._disturbance = disturbance or Disturbance()
        self._resolution = resolution
        self._time = 0.0
        self._factor = 1.0
        self._factor_until = -math.inf

    def now(self) -> float:
        """Virtual seconds since the clock was made."""
        if self._resolution:
            return math.floor(self._time / self._resolution) * self._resolution
        return self._time

    def sleep(self, seconds: float) -> None:
        """Advance by exactly ``seconds``: disturbances touch work alone."""
        self._time += seconds

    def others_run(self) -> bool:
        """Never: fake work has no threads that would go on."""
        return False

    def work(self, seconds: float) -> None:
        """Advance by what ``seconds`` of work take on the disturbed machine."""
        disturbance = self._disturbance
        taken = seconds * self._noise() * self._speed()
        if disturbance.burst_rate and self._random.random() < -math.expm1(-disturbance.burst_rate * seconds):
            taken += disturbance.burst_seconds
        self._time += taken

    def callable(self, seconds: float, output: _Output = None) -> Callable[[], _Output]:  # type: ignore[assignment]
        """Return a function that takes ``seconds`` of work on this clock and returns ``output``."""

        def fake_call() -> _Output:
            self.work(seconds)
            return output

        return fake_call

    def _noise(self) -> float:
        if self._disturbance.noise and self._time >= self._factor_until:
            self._factor = math.exp(self._random.gauss(0.0, self._disturbance.noise))
            self._factor_until = self._time + self._disturbance.noise_hold
        return self._factor

    def _speed(self) -> float:
        disturbance = self._disturbance
        # However long a test runs, work never gets more than ten times quicker by drifting.
        drifted = max(1 + disturbance.drift * self._time, 0.1)
        left = max(0.0, 1 - self._time / disturbance.ramp_seconds)
        return drifted * (1 + (disturbance.ramp_factor - 1) * left)
