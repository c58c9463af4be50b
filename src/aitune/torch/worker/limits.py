"""What one candidate may take, in a worker."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one candidate's build, check and first measurement together.

    Attributes:
        seconds: Time; None for no limit, which infinity is taken as.
        memory_bytes: Resident memory of the worker and everything that it started, beyond what is shared with others;
            None: what leaves the machine a margin.
        device_memory_bytes: Memory of the module's device; None for no limit.
    """

    seconds: float | None = None
    memory_bytes: int | None = None
    device_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.seconds == math.inf:
            object.__setattr__(self, "seconds", None)
