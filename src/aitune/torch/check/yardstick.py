"""Yardsticks: how large an output of eager is, and how far from its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from aitune.torch.check.blocks import blocks
from aitune.torch.check.distance import Yardstick, distance, standard

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


@dataclass(frozen=True)
class _Range:
    peak: float
    low: float
    high: float


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
    """Bring up the yardsticks of one output over many inputs where it is near zero by chance.

    Args:
        yards: One for each input.
        elements: Number of elements of each; only outputs of few elements change.

    Returns:
        The yardsticks, none smaller than a tenth of the median one where the output has few elements.
    """
    typical = sorted(yard.rms for yard in yards)[len(yards) // 2] if yards else 0.0
    return [
        yard.raised(_CHANCE * typical) if count < _FEW and typical > 0 else yard
        for yard, count in zip(yards, elements, strict=True)
    ]


def _size(eager: torch.Tensor, reference: torch.Tensor) -> Yardstick:
    whole = _range(eager, reference, math.inf)
    fill = _fill(eager, reference, whole) if whole.peak >= _FILL else None
    unit = (whole if fill is None else _range(eager, reference, fill)).peak or 1.0
    squares = torch.zeros(eager.shape[0] if eager.dim() else 1, dtype=torch.float64)
    counts = torch.zeros_like(squares)
    largest = 0.0
    for block in blocks((reference, eager)):
        value = standard(*block.exact)
        usable = torch.isfinite(value) if fill is None else value.abs() < fill
        value = torch.where(usable, value, 0.0) / unit
        rows = slice(block.row, block.row + value.shape[0])
        squares[rows] += value.square().sum(1).cpu()
        counts[rows] += usable.sum(1).cpu()
        largest = max(largest, float(value.abs().max()))
    scale = math.sqrt(float(squares.sum()) / max(float(counts.sum()), 1.0))
    slices = (squares / counts.clamp(min=1.0)).sqrt()
    least = max(scale, float(slices.max()) / _PART if slices.numel() else 0.0)
    return Yardstick(unit, scale, slices.clamp(min=least), max(scale, largest / _PART), fill)


def _range(eager: torch.Tensor, reference: torch.Tensor, below: float) -> _Range:
    low, high = math.inf, -math.inf
    for block in blocks((reference, eager)):
        value = standard(*block.exact)
        counted = torch.isfinite(value) & (value.abs() < below)
        low = min(low, float(torch.where(counted, value, math.inf).min()))
        high = max(high, float(torch.where(counted, value, -math.inf).max()))
    if low > high:
        return _Range(0.0, 0.0, 0.0)
    return _Range(max(abs(low), abs(high)), low, high)


def _fill(eager: torch.Tensor, reference: torch.Tensor, whole: _Range) -> float | None:
    """Return the magnitude from which elements are fills of a mask, None where large ones are no fills."""
    border = whole.peak / _FILL_GAP
    if min(abs(whole.low), abs(whole.high)) >= border and whole.low < 0 < whole.high:
        return None  # large ones of both signs
    rest = _range(eager, reference, border)
    if not rest.peak:
        return None
    for block in blocks((reference, eager)):
        size = standard(*block.exact).abs()
        if bool(((size >= border) & (size < (1 - _FILL_SPREAD) * whole.peak)).any()):
            return None
    return border
