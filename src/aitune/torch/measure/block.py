"""A block: consecutive calls of one side, timed in one go."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from aitune.torch.measure.profiling_config import ProfilingConfig
from aitune.torch.measure.stopwatch import Stopwatch, repeat

__all__ = ["Block", "Side", "plan_sides", "seconds_per_call"]

# A bound for functions that seem to take no time at all (an empty function on a fake clock): with more calls
# in a batch of 0.2 ms, one call would take less than 12 ns, and no Python function is that quick.
_MOST_CALLS = 1 << 14
# Above this many blocks' length in one call, what a cold start adds (below 1 ms) is lost in the noise.
_LONG_CALL = 10
# Rough times are right within this factor if they are the least of this many tries: on a busy machine every
# second call can be stalled for 15 ms.
_ALIKE = 4
_TRIES = 10


@dataclass(frozen=True)
class Block:
    """What one block showed.

    Attributes:
        typical: Seconds of one call, from the median of the block's batches: stalls of the machine hardly
            touch it, but neither does a candidate that is slow at every fifth call.
        mean: Seconds of one call, from all batches together, which misses nothing and is touched by
            everything.
        outputs: Of the first call (dropped from the time) and of the last; the last alone where none is
            dropped.
    """

    typical: float
    mean: float
    outputs: tuple[object, ...]


@dataclass(frozen=True)
class Side:
    """One of the two callables of a comparison, with the plan of its blocks.

    Attributes:
        call: Does one pass of the workload.
        batch: Calls that are timed together: one, unless the call is too quick to be timed alone.
        rounds: Batches in a block.
        dropped: Calls at the start of a block that are not timed.
        seconds: Estimated time of one call.
    """

    call: Callable[[], object]
    batch: int
    rounds: int
    dropped: int
    seconds: float

    @property
    def block_seconds(self) -> float:
        """Estimated time of a block with its dropped calls, without the pause before it."""
        return (self.batch * self.rounds + self.dropped) * self.seconds

    def run_block(self, stopwatch: Stopwatch, idle_seconds: float) -> Block:
        """Pause, make the dropped calls, and time the others.

        With a device to wait for, the whole block is one batch: waiting for it after each call would keep the
        host from running ahead, as it does in use. The output of the first call is held while the others run,
        so that an engine which hands out one buffer twice is seen by whoever looks at the outputs.
        """
        batch, rounds = self.batch, self.rounds
        if stopwatch.synchronize is not None:
            batch, rounds = batch * rounds, 1
        stopwatch.clock.sleep(idle_seconds)
        outputs: tuple[object, ...] = ()
        if self.dropped:
            outputs = (self.call(),)
            if self.dropped > 1:
                repeat(self.call, self.dropped - 1)
        times = []
        last: object = None
        for _ in range(rounds):
            del last  # as in use, an output is gone before the next one is made
            seconds, last = stopwatch.time_calls(self.call, batch)
            times.append(seconds)
        return Block(statistics.median(times) / batch, math.fsum(times) / (batch * rounds), (*outputs, last))


def plan_sides(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    stopwatch: Stopwatch,
    config: ProfilingConfig,
) -> tuple[Side, Side]:
    """Warm both callables up, time them roughly, and plan their blocks.

    Sides of like speed get the same plan: with unlike numbers of calls, stalls would hit the blocks of one
    side more often, and two equal sides would no longer look equal. Sides that are further apart than rough
    times can err (a factor of four) get plans of their own.

    Returns:
        The candidate's side and the baseline's.
    """
    ours = seconds_per_call(candidate, stopwatch, config)
    theirs = seconds_per_call(baseline, stopwatch, config)
    quick, slow = min(ours, theirs), max(ours, theirs)
    if slow < _ALIKE * quick:
        return _plan(candidate, ours, (quick, slow), config), _plan(baseline, theirs, (quick, slow), config)
    return _plan(candidate, ours, (ours, ours), config), _plan(baseline, theirs, (theirs, theirs), config)


def seconds_per_call(call: Callable[[], object], stopwatch: Stopwatch, config: ProfilingConfig) -> float:
    """Warm a callable up, then estimate the time of one call: the least of some tries, as noise only adds.

    Calls longer than ten blocks are warmed up once and timed once: repeating them would take the time that
    comparing needs.
    """
    long = _LONG_CALL * config.block_seconds
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
    return max(min(tries), config.batch_seconds / _MOST_CALLS)


def _plan(
    call: Callable[[], object], seconds: float, span: tuple[float, float], config: ProfilingConfig
) -> Side:
    """Plan the blocks of one side for calls that take ``span``, the quickest and the slowest, in seconds."""
    quick, slow = span
    batch = math.ceil(config.batch_seconds / quick) if quick < config.quick_seconds else 1
    rounds = max(1, min(config.block_calls, math.floor(config.block_seconds / (batch * slow))))
    dropped = max(config.dropped_calls, math.ceil(config.dropped_seconds / quick))
    if slow >= _LONG_CALL * config.block_seconds:
        dropped = 0
    return Side(call, batch, rounds, dropped, seconds)
