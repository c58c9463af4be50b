"""Dimensions that vary from call to call: declared by the user, or found in the sizes that were seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from aitune.exceptions import AITuneUserInputError

__all__ = ["BatchDim", "DynamicDim", "Shapes", "Size", "infer_dims"]


DimT = TypeVar("DimT", bound="DynamicDim")


@dataclass(frozen=True)
class DynamicDim:
    """An axis whose size varies between calls, within a range that is validated and accepted.

    Args:
        name: Axes with one name have one size in every call.
        min: Smallest size, at least 1.
        max: Largest size, above ``min``.
        opt: Size to optimise for; None leaves it to the backend.

    Attributes:
        unit: What the size is a fixed multiple of, empty for nothing. Dimensions of one unit vary together: in every
            call each is its ``per_unit`` times one number. Found in recorded calls, never declared.
        per_unit: That multiple.

    Raises:
        AITuneUserInputError: If ``1 <= min < max`` or ``min <= opt <= max`` does not hold.
    """

    name: str
    min: int
    max: int
    opt: int | None = None
    unit: str = field(default="", init=False, repr=False, compare=False)
    per_unit: int = field(default=1, init=False, repr=False, compare=False)

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

    def of_unit(self: DimT, unit: str, per_unit: int) -> DimT:
        """Return the same dimension as one of a unit."""
        tied = replace(self)
        object.__setattr__(tied, "unit", unit)
        object.__setattr__(tied, "per_unit", per_unit)
        return tied

    def changed(self: DimT, **fields: Any) -> DimT:
        """Return the same dimension with other fields, its unit kept."""
        return replace(self, **fields).of_unit(self.unit, self.per_unit)


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
    multiple of the batch size and at least two batch sizes were seen; all batch dimensions have the unit ``batch``.
    Two batch sizes prove little about a multiple of them: an axis that went from 8 to 16 while the batch went from 1
    to 2 may have done so by chance, so that such an axis counts only where a batch is expected, in front.
    Every other varying dimension is ``dim<i>``; those that kept one ratio over at least three sizes have a unit.

    Args:
        calls: For each call, the shape of each tensor; the ranks agree between calls.
        batch_sizes: For each call its batch size, None where it is not known.

    Returns:
        For each tensor the size of each axis.
    """
    ranks = [len(shape) for shape in calls[0]] if calls else []
    places = [(tensor, axis) for tensor, rank in enumerate(ranks) for axis in range(rank)]
    histories = {place: tuple(shapes[place[0]][place[1]] for shapes in calls) for place in places}
    varying: dict[tuple[int, ...], int] = {}
    for (_, axis), seen in histories.items():
        if min(seen) != max(seen) and max(seen) > 1:
            varying[seen] = min(axis, varying.get(seen, axis))
    multiples = _batch_multiples(varying, batch_sizes)
    dims: dict[tuple[int, ...], DynamicDim] = {}
    for seen in varying:
        low, high = max(min(seen), 1), max(seen)
        if seen in multiples:
            number, times = sum(one.unit == "batch" for one in dims.values()), multiples[seen]
            dims[seen] = BatchDim(f"batch{number}", max(low, times), high).of_unit("batch", times)
        else:
            number = sum(not isinstance(one, BatchDim) for one in dims.values())
            dims[seen] = DynamicDim(f"dim{number}", low, high)
    dims.update(_tied([(seen, dim) for seen, dim in dims.items() if not isinstance(dim, BatchDim)]))
    sizes: dict[tuple[int, int], Size] = {place: dims.get(seen, max(seen)) for place, seen in histories.items()}
    return tuple(tuple(sizes[tensor, axis] for axis in range(rank)) for tensor, rank in enumerate(ranks))


def _batch_multiples(
    varying: Mapping[tuple[int, ...], int], batch_sizes: Sequence[int | None]
) -> dict[tuple[int, ...], int]:
    """Return how many entries a sample has along each axis that is one of batches.

    Args:
        varying: Sizes in each call, with the foremost axis that had them.
        batch_sizes: Batch size of each call, None where it is not known.
    """
    found: dict[tuple[int, ...], int] = {}
    distinct = len({batch for batch in batch_sizes if batch})
    for seen, axis in varying.items():
        times = _multiple([(size, batch) for size, batch in zip(seen, batch_sizes, strict=True) if batch])
        if distinct < 2 or times is None or (times > 1 and axis > 0 and distinct < 3):
            continue
        found[seen] = times
    # Calls of which the batch size is not known must not say otherwise.
    leader = min(found, key=lambda seen: found[seen], default=())
    return {
        seen: times
        for seen, times in found.items()
        if all(a * found[leader] == b * times and a % times == 0 for a, b in zip(seen, leader, strict=True))
    }


def _multiple(known: Sequence[tuple[int, int]]) -> int | None:
    if not known or known[0][0] % known[0][1] or not known[0][0]:
        return None
    times = known[0][0] // known[0][1]
    return times if all(size == times * batch for size, batch in known) else None


def _tied(dims: Sequence[tuple[tuple[int, ...], DynamicDim]]) -> dict[tuple[int, ...], DynamicDim]:
    """Return the dimensions that kept one ratio to each other, with their unit."""
    families: dict[tuple[int, ...], list[tuple[tuple[int, ...], DynamicDim, int]]] = {}
    for seen, dim in dims:
        common = math.gcd(*seen)
        if common and len(set(seen)) > 2:
            families.setdefault(tuple(size // common for size in seen), []).append((seen, dim, common))
    tied = {}
    for family in families.values():
        if len(family) > 1:
            common = math.gcd(*(times for _, _, times in family))
            unit = family[0][1].name
            for seen, dim, times in family:
                tied[seen] = dim.of_unit(unit, times // common)
    return tied
