"""How much of a dataset is used: the batch sizes, and the batches of each."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.description import describe

__all__ = ["DEFAULT_BATCHES_PER_SIZE", "DEFAULT_BATCH_SIZES", "Limits"]

DEFAULT_BATCH_SIZES = (1, 2)
"""Two sizes, since one does not tell the batch axis from the others."""

DEFAULT_BATCHES_PER_SIZE = 32
"""Batches of one size where the caller sets no number: enough to see how sizes vary, few enough to run in
eager."""


@dataclass(frozen=True)
class Limits:
    """How much of a dataset is used.

    Attributes:
        batch_sizes: Samples a batch, each at least 1, without duplicates, in the order of the caller.
        per_size: Batches of each size that are asked for, at least 1; None leaves the number to us, which is
            then at most :data:`DEFAULT_BATCHES_PER_SIZE`.
    """

    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    per_size: int | None = None

    @property
    def most(self) -> int:
        """The most batches of one size."""
        return DEFAULT_BATCHES_PER_SIZE if self.per_size is None else self.per_size

    @classmethod
    def checked(cls, batch_sizes: object = None, max_num_batches_per_batch_size: object = None) -> Limits:
        """Make limits from what a caller passed.

        Args:
            batch_sizes: A sequence of integers of at least 1, or None for :data:`DEFAULT_BATCH_SIZES`.
            max_num_batches_per_batch_size: An integer of at least 1, or None.

        Raises:
            AITuneUserInputError: If either is something else.
        """
        most = max_num_batches_per_batch_size
        if most is not None and _positive(most) is None:
            raise AITuneUserInputError(
                f"max_num_batches_per_batch_size must be an integer of at least 1, got {most!r}: "
                f"leave it out for at most {DEFAULT_BATCHES_PER_SIZE} batches a size"
            )
        sizes = DEFAULT_BATCH_SIZES if batch_sizes is None else _sizes(batch_sizes)
        return cls(tuple(dict.fromkeys(sizes)), None if most is None else _positive(most))


def _sizes(given: object) -> list[int]:
    if _positive(given) is not None:
        raise AITuneUserInputError(f"batch_sizes must be a list of sizes, got {given!r}: write batch_sizes=[{given}]")
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise AITuneUserInputError(
            f"batch_sizes must be a list of integers of at least 1 such as {list(DEFAULT_BATCH_SIZES)}, "
            f"got {describe(given)}"
        )
    if not given:
        raise AITuneUserInputError(
            f"batch_sizes is empty: name at least one size, or leave it out for {list(DEFAULT_BATCH_SIZES)}"
        )
    sizes = []
    for item in given:
        size = _positive(item)
        if size is None:
            raise AITuneUserInputError(
                f"batch_sizes must hold integers of at least 1, got {item!r} in {given!r}: "
                f"write sizes such as {list(DEFAULT_BATCH_SIZES)}"
            )
        sizes.append(size)
    return sizes


def _positive(value: object) -> int | None:
    """Return an integer of at least 1, numpy's too, as int; None for everything else, bools included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        number = operator.index(value)
    except TypeError:  # arrays and tensors have the method and refuse
        return None
    return number if number >= 1 else None
