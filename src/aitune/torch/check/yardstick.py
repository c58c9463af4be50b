"""Yardsticks: how large an output of eager is, and how far from its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from aitune.torch.check.blocks import blocks
from aitune.torch.check.distance import Yardstick, distance, magnitude, standard

__all__ = ["level", "yardstick"]

# A slice or an element is measured against the scale of the whole or, where that is larger, an eighth of the
# largest slice or element: of 30,000 class probabilities one is near 1 and carries all the error, while the
# root mean square is 0.006.
_PART = 8.0
# -1e4 and beyond, a thousand times everything else, and all alike: the value that masks are filled with.
_FILL, _FILL_GAP, _FILL_SPREAD = 1e4, 1e3, 0.01
# What is left of a true zero is a few, at worst some tens of rounding units of the precision that it was
# computed in.
_ROUNDINGS = 100.0
# Fewer elements than this can all be near zero by chance; a score of 1e-4 among scores of 3 is no reason to
# ask for 1e-8.
_FEW = 16
_CHANCE = 0.1
# Where one direction carries all the error, as in the inverse of a nearly singular matrix, the error on one input is a
# single draw: one in twelve normal ones is ten times less than their deviation.
_LUCK = 10.0


@dataclass(frozen=True)
class _Range:
    peak: float
    low: float
    high: float
    complete: bool  # whether all values are in it


def yardstick(eager: torch.Tensor, reference: torch.Tensor, rounding: float = 0.0) -> Yardstick:
    """Measure an output of eager against its reference.

    Args:
        eager: What the module returned, of a floating or complex dtype.
        reference: The same values from higher precision and of the same shape, or ``eager`` itself.
        rounding: Rounding unit of the reference's precision over that of eager's; 0 when they are the same.
    """
    size = _size(eager, reference)
    found = distance(eager, reference, eager, size)
    if rounding and found.error > 1:
        own = _size(eager, eager)
        if size.rms <= _ROUNDINGS * rounding * own.rms:
            size = replace(own, noise=True)
            found = distance(eager, reference, eager, size)
    return replace(size, error=found.error, slice_errors=found.slices, element_error=found.element)


def level(yards: Sequence[Yardstick], elements: Sequence[int]) -> list[Yardstick]:
    """Even out the yardsticks of one output over many inputs, of which some are extreme by chance.

    Args:
        yards: One for each input.
        elements: Number of elements of each.

    Returns:
        The yardsticks. None of few elements is smaller than a tenth of the median one; and eager's error counts for
        ten times what it is where it is that large on another input.
    """
    ordinary = [yard for yard in yards if not yard.noise]
    if not ordinary:
        return list(yards)
    typical = sorted(yard.rms for yard in ordinary)[len(ordinary) // 2]
    largest = max(yard.error for yard in ordinary)
    levelled = []
    for yard, count in zip(yards, elements, strict=True):
        large = yard.raised(_CHANCE * typical) if count < _FEW and typical > 0 and not yard.noise else yard
        levelled.append(replace(large, luck=0.0 if yard.noise else min(largest, _LUCK * large.error)))
    return levelled


def _size(eager: torch.Tensor, reference: torch.Tensor) -> Yardstick:
    whole = _range(eager, reference, math.inf)
    fill = _fill(eager, reference, whole) if whole.peak >= _FILL else None
    unit = (whole if fill is None else _range(eager, reference, fill)).peak or 1.0
    squares = torch.zeros(eager.shape[0] if eager.dim() else 1, dtype=torch.float64)
    counts = torch.zeros_like(squares)
    for block in blocks((reference, eager)):
        value = standard(block, 0, 1)
        if fill is not None or not whole.complete:
            usable = value.abs() < (math.inf if fill is None else fill)
            value = torch.where(usable, value, 0.0)
            found = usable.sum(1).cpu()
        else:
            found = torch.full((value.shape[0],), value.shape[1])
        rows = slice(block.row, block.row + value.shape[0])
        squares[rows] += (value / unit).square().sum(1).cpu()
        counts[rows] += found
    scale = math.sqrt(float(squares.sum()) / max(float(counts.sum()), 1.0))
    slices = (squares / counts.clamp(min=1.0)).sqrt()
    least = max(scale, float(slices.max()) / _PART if slices.numel() else 0.0)
    largest = 1.0 if scale else 0.0  # the unit is the largest element
    return Yardstick(unit, scale, slices.clamp(min=least), max(scale, largest / _PART), fill)


def _range(eager: torch.Tensor, reference: torch.Tensor, below: float) -> _Range:
    """Find the range of the values whose magnitude is less than ``below``."""
    low, high, complete = math.inf, -math.inf, True
    for block in blocks((reference, eager)):
        value = standard(block, 0, 1)
        if magnitude(value) < below:
            least, most = torch.aminmax(value)
        else:
            complete = False
            counted = value.abs() < below
            least, most = torch.where(counted, value, math.inf).min(), torch.where(counted, value, -math.inf).max()
        low, high = min(low, float(least)), max(high, float(most))
    if low > high:
        return _Range(0.0, 0.0, 0.0, complete)
    return _Range(max(abs(low), abs(high)), low, high, complete)


def _fill(eager: torch.Tensor, reference: torch.Tensor, whole: _Range) -> float | None:
    """Return the magnitude from which elements are fills of a mask, None where large ones are no fills."""
    border = whole.peak / _FILL_GAP
    if min(abs(whole.low), abs(whole.high)) >= border and whole.low < 0 < whole.high:
        return None  # large ones of both signs
    if not _range(eager, reference, border).peak:
        return None
    for block in blocks((reference, eager)):
        size = standard(block, 0, 1).abs()
        if bool(((size >= border) & (size < (1 - _FILL_SPREAD) * whole.peak)).any()):
            return None
    return border
