"""The settings of a measurement: how long, how often, and how sure it must be."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from aitune.exceptions import AITuneUserInputError
from aitune.torch.measure.interval import fewest_values

__all__ = ["DEFAULT_MIN_GAIN", "ProfilingConfig"]

DEFAULT_MIN_GAIN = 0.01
"""Gain over the original, as a ratio, below which a candidate is not worth its risk."""


@dataclass(frozen=True, kw_only=True)
class ProfilingConfig:
    """How two callables are compared and the latency of one is sampled. Made for calls of 5 µs to 5 s.

    A *block* is a run of consecutive calls of one side, timed as a whole; a *pair* is one block of each side.
    A block holds ``block_calls`` calls or as many as fit ``block_seconds``, whichever is less, and at least
    one.

    Args:
        block_calls: Most calls (for quick functions: batches of calls) in a block.
        block_seconds: Longest block, in seconds.
        idle_seconds: Pause before each block, in which the worker threads of the other side stop spinning.
        warmup_calls: Calls of each side before anything is timed.
        dropped_calls: Calls at the start of each block that are not timed.
        dropped_seconds: The dropped calls last at least this long together; 0 drops ``dropped_calls`` and no
            more.
        quick_seconds: A function whose call takes less is called in batches, and a batch counts as one call,
            so that neither the clock's resolution nor the cost of reading it matters.
        batch_seconds: Such a batch lasts at least this long.
        min_blocks: Pairs of blocks before the first decision.
        max_blocks: Pairs of blocks at the most.
        settle_seconds: Time after which a comparison that is still undecided ends, once it has ``min_blocks`` pairs:
            calls of seconds get the pairs that a decision needs, quick ones do not go on for minutes.
        max_seconds: Time for one comparison, or for sampling one latency; warming up is part of it.
        confidence: Probability that the interval of the speedup holds the true one, all looks at the data
            together.
        busy_spread: Relative distance between the quartiles of the pairs' ratios above which an open interval
            is put down to a busy machine.
        latency_calls: Calls whose times make the percentiles of a latency.
        seed: Seeds the order of the two blocks in each pair. No global random state is touched.

    Raises:
        AITuneUserInputError: (a ValueError) If a value is outside what it may be; the message says what is
            allowed.
    """

    block_calls: int = 20
    block_seconds: float = 0.02
    idle_seconds: float = 0.003
    warmup_calls: int = 3
    dropped_calls: int = 1
    dropped_seconds: float = 0.001
    quick_seconds: float = 0.00005
    batch_seconds: float = 0.0002
    min_blocks: int = 10
    max_blocks: int = 160
    settle_seconds: float = 30.0
    max_seconds: float = 120.0
    confidence: float = 0.99
    busy_spread: float = 0.05
    latency_calls: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name), whole=field.type == "int")
        for name in (
            "block_calls",
            "warmup_calls",
            "dropped_calls",
            "min_blocks",
            "max_blocks",
            "latency_calls",
        ):
            _require(getattr(self, name) >= 1, name, "an integer of at least 1", getattr(self, name))
        for name in ("block_seconds", "quick_seconds", "batch_seconds", "settle_seconds", "max_seconds", "busy_spread"):
            _require(getattr(self, name) > 0, name, "a number above 0", getattr(self, name))
        for name in ("idle_seconds", "dropped_seconds"):
            _require(getattr(self, name) >= 0, name, "a number of at least 0", getattr(self, name))
        _require(0.5 <= self.confidence < 1, "confidence", "at least 0.5 and below 1", self.confidence)
        _require(
            self.batch_seconds <= self.block_seconds,
            "batch_seconds",
            "at most block_seconds",
            self.batch_seconds,
        )
        _require(self.min_blocks <= self.max_blocks, "min_blocks", "at most max_blocks", self.min_blocks)
        fewest = fewest_values(self.confidence)
        allowed = f"at least {fewest}, without which no interval has a confidence of {self.confidence}"
        _require(self.max_blocks >= fewest, "max_blocks", allowed, self.max_blocks)


def _check_number(name: str, value: object, *, whole: bool) -> None:
    kinds = int if whole else (int, float)
    good = isinstance(value, kinds) and not isinstance(value, bool)
    _require(good and math.isfinite(value), name, "an integer" if whole else "a finite number", value)  # type: ignore[arg-type]


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise AITuneUserInputError(f"ProfilingConfig.{name} must be {allowed}, not {value!r}")
