"""Dimensions that vary from call to call: declared by the user, or found in the sizes that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aitune.exceptions import AITuneUserInputError

__all__ = ["BatchDim", "DynamicDim", "Shapes", "Size", "infer_dims"]


@dataclass(frozen=True)
class DynamicDim:
    """An axis whose size varies between calls, within a range that is validated and accepted.

    Args:
        name: Axes with one name have one size in every call.
        min: Smallest size, at least 1.
        max: Largest size, above ``min``.
        opt: Size to optimise for; None leaves it to the backend.

    Raises:
        AITuneUserInputError: If ``1 <= min < max`` or ``min <= opt <= max`` does not hold.
    """

    name: str
    min: int
    max: int
    opt: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise AITuneUserInputError(f"{type(self).__name__}: name must be an identifier, not {self.name!r}")
        sizes = (self.min, self.max) if self.opt is None else (self.min, self.max, self.opt)
        if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
            raise AITuneUserInputError(
                f"{type(self).__name__} {self.name!r}: min, max and opt must be integers, not {sizes}"
            )
        if not 1 <= self.min < self.max:
            raise AITuneUserInputError(
                f"{type(self).__name__} {self.name!r}: 1 <= min < max must hold, not min={self.min}, max={self.max};"
                " write a plain number for an axis that does not vary"
            )
        if self.opt is not None and not self.min <= self.opt <= self.max:
            raise AITuneUserInputError(
                f"{type(self).__name__} {self.name!r}: opt={self.opt} is outside {self.min} to {self.max}"
            )


class BatchDim(DynamicDim):
    """The batch axis: its size is the number of samples in the call."""


Size = int | DynamicDim
"""Size of one axis: fixed, or a dimension."""

Shapes = Sequence[tuple[int, ...]]
"""Shapes of the tensors of one call, in the order of the leaves."""


def infer_dims(calls: Sequence[Shapes], batch_sizes: Sequence[int | None]) -> tuple[tuple[Size, ...], ...]:
    """Find which axes vary, and which of them vary together.

    Axes that had one size in every call are static. Axes that were equal in every call share one dimension.
    A dimension is a batch dimension (``batch<i>``) if its size was, in every call whose batch size is known, one fixed
    multiple of the batch size and at least two batch sizes were seen; every other varying dimension is ``dim<i>``.

    Args:
        calls: For each call, the shape of each tensor; the ranks agree between calls.
        batch_sizes: For each call its batch size, None where it is not known.

    Returns:
        For each tensor the size of each axis.
    """
    tensors = len(calls[0]) if calls else 0
    names: dict[tuple[int, ...], DynamicDim] = {}
    counts = {"batch": 0, "dim": 0}

    def size_of(tensor: int, axis: int) -> Size:
        seen = tuple(shapes[tensor][axis] for shapes in calls)
        if min(seen) == max(seen) or max(seen) < 2:
            return seen[0]
        if seen not in names:
            is_batch = _proportional(seen, batch_sizes)
            stem, kind = ("batch", BatchDim) if is_batch else ("dim", DynamicDim)
            names[seen] = kind(f"{stem}{counts[stem]}", max(min(seen), 1), max(seen))
            counts[stem] += 1
        return names[seen]

    return tuple(tuple(size_of(i, axis) for axis in range(len(calls[0][i]))) for i in range(tensors))


def _proportional(sizes: Sequence[int], batch_sizes: Sequence[int | None]) -> bool:
    known = [(size, batch) for size, batch in zip(sizes, batch_sizes, strict=True) if batch]
    if len({batch for _, batch in known}) < 2:
        return False
    first_size, first_batch = known[0]
    return first_size % first_batch == 0 and all(size * first_batch == first_size * batch for size, batch in known)
