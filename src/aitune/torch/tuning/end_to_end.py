"""The last word: the whole function, tuned against untuned, and modules put back where it got slower."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aitune.torch.check.trace import no_trace
from aitune.torch.dataloader import Batch
from aitune.torch.measure import PairedTiming, ProfilingConfig, Stopwatch, compare
from aitune.torch.module.handle import Handle
from aitune.torch.report import EndToEnd

__all__ = ["Whole", "time_whole"]

_log = logging.getLogger(__name__)

_TOLERANCE = 0.01
"""Loss, as a ratio, below which noise and not the engines is held responsible."""


@dataclass(frozen=True)
class Whole:
    """The user's function with its data.

    Attributes:
        func: The function.
        batches: The calls that make one pass.
        stopwatch: How time is read.
        max_seconds: Time for one comparison.
    """

    func: Callable[..., Any]
    batches: Sequence[Batch]
    stopwatch: Stopwatch
    max_seconds: float = 10.0

    def run(self) -> None:
        """Make one pass."""
        for batch in self.batches:
            self.func(*batch.args, **batch.kwargs)


def time_whole(whole: Whole, tuned: Sequence[Handle], expired: Callable[[], bool]) -> EndToEnd | None:
    """Time the function with its modules tuned against untuned, and put back modules while it is slower.

    The one that gained least goes first. Modules whose strategies do without the performance validation stay.

    Args:
        whole: The function with its data.
        tuned: Handles whose modules have engines installed.
        expired: Tells whether time is up.

    Returns:
        The figures of what is left installed; None where there is nothing to time.
    """
    left = list(tuned)
    put_back: list[str] = []
    timing: PairedTiming | None = None
    while left and not expired():
        with _no_traces(left):
            timing = _compare(whole, left)
        if timing.outcome != "not_faster":
            break
        candidates = [handle for handle in left if handle.may_be_put_back]
        if not candidates:
            break
        worst = min(candidates, key=_gain)
        note = f"the whole function was slower with it ({timing.speedup:.3g}x), so it was put back"
        _log.warning("%s: %s", worst.name, note)
        worst.put_back()
        left.remove(worst)
        put_back.append(worst.name)
    if timing is None:
        return None
    return _figures(timing, put_back, bool(left))


def _compare(whole: Whole, handles: Sequence[Handle]) -> PairedTiming:
    def tuned() -> None:
        for handle in handles:
            handle.activate()
        whole.run()

    def original() -> None:
        for handle in handles:
            handle.deactivate()
        whole.run()

    try:
        return compare(
            tuned,
            original,
            stopwatch=whole.stopwatch,
            config=ProfilingConfig(max_seconds=whole.max_seconds),
            min_gain=-_TOLERANCE,
        )
    finally:
        for handle in handles:
            handle.activate()
            handle.reset_stats()  # the user's calls are what is counted


@contextlib.contextmanager
def _no_traces(handles: Sequence[Handle]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for handle in handles:
            stack.enter_context(no_trace(handle.module))
        yield


def _gain(handle: Handle) -> float:
    """Return the smallest speedup among the chosen engines of a module."""
    result = handle.result
    trials = [graph.chosen_trial for graph in result.graphs] if result is not None else []
    return min((trial.speedup for trial in trials if trial is not None and trial.speedup is not None), default=1.0)


def _figures(timing: PairedTiming, put_back: Sequence[str], engines_left: bool) -> EndToEnd:
    if not engines_left:
        seconds = timing.baseline_seconds
        return EndToEnd(seconds, seconds, 1.0, 1.0, 1.0, tuple(put_back), "every module was put back")
    note = timing.reason if timing.outcome == "undecided" else ""
    return EndToEnd(
        timing.baseline_seconds,
        timing.candidate_seconds,
        timing.speedup,
        timing.low,
        timing.high,
        tuple(put_back),
        note,
    )
