"""Which samples make up the batches of one size; numbers only, no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

__all__ = ["in_order", "spread"]


def in_order(available: Callable[[int], int], size: int, most: int | None = None) -> Iterator[Sequence[int]]:
    """Yield the indices of each batch, in the order of the dataset.

    Samples are taken once, except where the number does not divide: the last batch then goes back far enough
    to be full, so that every sample is used and none twice in one batch. Fewer samples than one batch are
    repeated from the start.

    Args:
        available: Told how many samples are wanted, returns how many there are; it may stop counting at the
            wanted number, so that an endless stream is read no further.
        size: Samples a batch.
        most: The most batches, None for all of them.
    """
    start = 0
    while most is None or start < most * size:
        count = available(start + size)
        if count <= start:
            return
        yield _block(min(start, count - size), size, count)
        start += size


def spread(count: int, size: int, most: int) -> Iterator[Sequence[int]]:
    """Yield the indices of each batch, the batches spread evenly over a dataset that holds more than wanted.

    A batch is a run of neighbours, since datasets are often ordered by length; the first batch begins at the
    first sample and the last one ends at the last. The choice depends on the numbers alone.

    Args:
        count: Samples in the dataset.
        size: Samples a batch.
        most: The most batches.
    """
    if count <= most * size or most == 1:
        yield from in_order(lambda _: count, size, most)
        return
    for number in range(most):
        yield _block(number * (count - size) // (most - 1), size, count)


def _block(start: int, size: int, count: int) -> Sequence[int]:
    if count < size:
        return [index % count for index in range(size)]
    return range(start, start + size)
