"""A block: consecutive calls of one side, timed in one go."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from aitune.torch.measure.profiling_config import ProfilingConfig
from aitune.torch.measure.rest import Rest
from aitune.torch.measure.stopwatch import Stopwatch, repeat

__all__ = ["Block", "BlockPlan", "run_block", "seconds_per_call"]

# A bound for functions that seem to take no time at all (an empty function on a fake clock): with more calls
# in a batch of 0.2 ms, one call would take less than 12 ns, and no Python function is that quick.
_MOST_CALLS = 1 << 14
# A call as long as this many blocks is long: what a cold start adds (below 1 ms) is lost in its noise.
_LONG = 10
_ENOUGH_ROUNDS = 5
# Tries for the least time of a call: on a busy machine every second call can be stalled for 15 ms.
_TRIES = 10


@dataclass(frozen=True)
class BlockPlan:
    """How many calls make a block.

    Attributes:
        batch: Calls that are timed together: one, unless a call is too quick to be timed alone.
        rounds: Batches in the block.
        dropped: Calls before them that are not timed.
        patience: Seconds after which the block ends early, if it has five batches by then: on a busy machine every
            second call can be stalled, and the median is as good by then as it gets.
    """

    batch: int
    rounds: int
    dropped: int
    patience: float = math.inf

    @classmethod
    def for_calls_of(cls, seconds: float, config: ProfilingConfig) -> BlockPlan:
        """Plan a block for calls that take ``seconds``."""
        seconds = max(seconds, config.batch_seconds / _MOST_CALLS)
        batch = math.ceil(config.batch_seconds / seconds) if seconds < config.quick_seconds else 1
        rounds = max(1, min(config.block_calls, math.floor(config.block_seconds / (batch * seconds))))
        dropped = max(config.dropped_calls, math.ceil(config.dropped_seconds / seconds))
        long = _LONG * config.block_seconds
        return cls(batch, rounds, 0 if seconds >= long else dropped, patience=long)

    @property
    def calls(self) -> int:
        """All calls, timed or not."""
        return self.batch * self.rounds + self.dropped


@dataclass(frozen=True)
class Block:
    """What one block showed; times are seconds of one call.

    Attributes:
        typical: From the median of the batches: stalls of the machine hardly touch it, but neither does a
            candidate that is slow at every fifth call.
        mean: From all batches together, which misses nothing and is touched by everything.
        least: From the quickest batch.
        outputs: Of the first call (dropped from the time) and of the last; the last alone if none is dropped.
    """

    typical: float
    mean: float
    least: float
    outputs: tuple[object, ...]


def run_block(call: Callable[[], object], plan: BlockPlan, stopwatch: Stopwatch, rest: Rest) -> Block:
    """Pause, make the dropped calls, and time the others.

    With a device to wait for, the whole block is one batch: waiting for it after each call would keep the host
    from running ahead, as it does in use. The output of the first call is held while the others run, so that an
    engine which hands out one buffer twice is seen by whoever looks at the outputs.
    """
    batch, rounds = plan.batch, plan.rounds
    if stopwatch.synchronize is not None:
        batch, rounds = batch * rounds, 1
    rest.take()
    outputs: tuple[object, ...] = ()
    if plan.dropped:
        outputs = (call(),)
        if plan.dropped > 1:
            repeat(call, plan.dropped - 1)
    times: list[float] = []
    last: object = None
    end = stopwatch.clock.now() + plan.patience
    while len(times) < rounds:
        del last  # as in use, an output is gone before the next one is made
        seconds, last = stopwatch.time_calls(call, batch)
        times.append(seconds / batch)
        if len(times) >= _ENOUGH_ROUNDS and stopwatch.clock.now() >= end:
            break
    return Block(statistics.median(times), statistics.fmean(times), min(times), (*outputs, last))


def seconds_per_call(call: Callable[[], object], stopwatch: Stopwatch, config: ProfilingConfig) -> float:
    """Warm a callable up, then estimate the time of one call: the least of some tries, as noise only adds.

    Calls longer than ten blocks are warmed up once and timed once: repeating them would take the time that
    comparing needs.
    """
    long = _LONG * config.block_seconds
    warmed = 0.0
    for _ in range(config.warmup_calls):
        warmed += stopwatch.time_calls(call, 1)[0]
        if warmed >= long:
            break
    tries: list[float] = []
    spent = 0.0
    while len(tries) < _TRIES and spent < long:
        calls, seconds = 1, stopwatch.time_calls(call, 1)[0]
        while seconds < config.batch_seconds and calls < _MOST_CALLS:
            calls *= 2
            seconds = stopwatch.time_calls(call, calls)[0]
        tries.append(seconds / calls)
        spent += seconds
    return min(tries)
