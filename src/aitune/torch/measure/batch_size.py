"""The search for the batch size with the best throughput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aitune.torch.measure.memory import is_out_of_memory

__all__ = ["BatchSizeSearch", "search_batch_size"]

_MIN_GROWTH = 0.05


@dataclass(frozen=True)
class BatchSizeSearch:
    """What a search for the batch size found.

    Attributes:
        best: The size to use; None when not even the first size could be run.
        tried: Each size that was measured, with its throughput in samples per second, in the order of the
            search.
        stopped_because: Why no larger size was tried, in a sentence.
    """

    best: int | None
    tried: tuple[tuple[int, float], ...]
    stopped_because: str


def search_batch_size(
    throughput_at: Callable[[int], float],
    start: int,
    limit: int,
    fits: Callable[[int], bool],
) -> BatchSizeSearch:
    """Go through the powers of two while throughput grows by 5 % or more from one size to the next.

    A size that seems to grow too little is measured once more, and its better figure counts: what a busy machine adds
    to a time is never negative.

    Args:
        throughput_at: Measures a size, in samples per second. Running out of memory there ends the search;
            every other exception passes through. 0 where a size cannot be run at all, which is not asked again.
        start: First size, at least 1; the next ones are the powers of two above it.
        limit: Largest size allowed.
        fits: Whether a size is expected to fit in memory; asked before each size but the first, which has run
            before.

    Returns:
        The last size that grew enough, with all figures.

    Raises:
        ValueError: Unless ``1 <= start <= limit``.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"1 <= start <= limit must hold, not start={start}, limit={limit}")
    tried: list[tuple[int, float]] = []
    best: int | None = None
    size = start
    while True:
        why = _measure(throughput_at, size, tried)
        if why is None and (why := _judge_growth(tried)) is not None and tried[-1][1] > 0:
            why = _measure_again(throughput_at, tried) or _judge_growth(tried)
        if why is None:
            best = size
            size = 1 << size.bit_length()
            why = _obstacle(size, limit, fits)
        if why is not None:
            return BatchSizeSearch(best=best, tried=tuple(tried), stopped_because=why)


def _measure(throughput_at: Callable[[int], float], size: int, tried: list[tuple[int, float]]) -> str | None:
    try:
        tried.append((size, throughput_at(size)))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return f"batch size {size} ran out of memory"
    return None


def _measure_again(throughput_at: Callable[[int], float], tried: list[tuple[int, float]]) -> str | None:
    """Replace the last figure by a second one where that is better."""
    first = tried.pop()
    why = _measure(throughput_at, first[0], tried)
    if why is not None:
        tried.append(first)
        return why
    tried[-1] = max(first, tried[-1])
    return None


def _judge_growth(tried: list[tuple[int, float]]) -> str | None:
    if len(tried) < 2:
        return None
    (before, slower), (size, throughput) = tried[-2:]
    if throughput >= slower * (1 + _MIN_GROWTH):
        return None
    growth = throughput / slower
    return f"batch size {size} has {growth:.3g} times the throughput of {before}, not {1 + _MIN_GROWTH} times"


def _obstacle(size: int, limit: int, fits: Callable[[int], bool]) -> str | None:
    if size > limit:
        return f"batch size {size} is above the limit of {limit}"
    return None if fits(size) else f"batch size {size} would not fit in memory"
