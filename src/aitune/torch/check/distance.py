"""How far one tensor is from another: relative L2 error of the whole, of each slice, of the worst element.

Sums are taken in float64 after division by the largest magnitude, so that neither 1e-200 nor 1e300 is squared
as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from aitune.torch.check.blocks import Block, blocks, position

__all__ = ["Distance", "Yardstick", "distance", "magnitude", "standard"]


@dataclass(frozen=True, eq=False)
class Yardstick:
    """How large an output is, and how exact eager's own is. Slices lie along the leading axis.

    Attributes:
        unit: Largest magnitude, by which the scales are divided.
        scale: Root mean square of the whole.
        slice_scales: What the error of each slice is measured against.
        element_scale: What the error of an element is measured against.
        fill: Magnitude from which elements are mask fills (-1e9 and the like), each measured against itself,
            since they would swamp every norm; None where there are none.
        noise: Whether the reference is zero but for its rounding; the scales are then those of eager's own
            noise.
        error: Eager's relative L2 error.
        luck: What of eager's error on other inputs counts here, since the error on one input may be small by luck.
        slice_errors: Eager's error of each slice.
        element_error: Eager's error of its worst element.
    """

    unit: float
    scale: float
    slice_scales: torch.Tensor
    element_scale: float
    fill: float | None = None
    noise: bool = False
    error: float = 0.0
    luck: float = 0.0
    slice_errors: torch.Tensor | None = None
    element_error: float = 0.0

    @property
    def allowance(self) -> float:
        """Eager's error as bounds count it."""
        return max(self.error, self.luck)

    @property
    def rms(self) -> float:
        """Root mean square of the output as it is."""
        return self.unit * self.scale

    def raised(self, rms: float) -> Yardstick:
        """Return this yardstick with all scales brought up to ``rms``; for an output near zero by chance."""
        if self.rms >= rms:
            return self
        shrink = self.unit / rms
        errors = self.slice_errors
        return replace(
            self,
            unit=rms,
            scale=1.0,
            slice_scales=torch.ones_like(self.slice_scales),
            element_scale=1.0,
            error=_shrunk(self.error, self.scale * shrink),
            slice_errors=None if errors is None else (errors * self.slice_scales * shrink).nan_to_num(0.0),
            element_error=_shrunk(self.element_error, self.element_scale * shrink),
        )


@dataclass(frozen=True, eq=False)
class Distance:
    """Errors of one output, relative to its yardstick.

    Attributes:
        error: Relative L2 error of the whole, or the worst relative error of a mask fill if that is larger.
        slices: Error of each slice.
        element: Error of the worst element.
        worst: Index of that element.
        misplaced: Index of an element that is NaN, infinite or finite where it must not be; None when there
            is none.
    """

    error: float
    slices: torch.Tensor
    element: float
    worst: tuple[int, ...] = ()
    misplaced: tuple[int, ...] | None = None


def distance(out: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor, yard: Yardstick) -> Distance:
    """Measure an output against a reference of the same shape.

    NaN and infinity belong where eager has them. Where eager's precision overflowed and the reference did
    not, a finite value is right as well. Where only the reference is not finite, eager's value is the
    standard.

    Args:
        out: The output to judge, floating or complex.
        reference: The best known values; may be ``eager`` itself.
        eager: The module's own output.
        yard: What errors are relative to.
    """
    squares = torch.zeros(yard.slice_scales.numel(), dtype=torch.float64)
    counts = torch.zeros_like(squares)
    largest, worst, of_fills = 0.0, 0, 0.0
    for block in blocks((out, reference, eager)):
        diff, usable, misplaced = _difference(block)
        if misplaced is not None:
            return Distance(math.inf, squares, math.inf, misplaced=position(out, block.offset + misplaced))
        if yard.fill is not None:
            usable, fill_error = _without_fills(diff, usable, standard(block, 1, 2), yard.fill)
            of_fills = max(of_fills, fill_error)
        if usable is not None:
            diff = torch.where(usable, diff, 0.0)
        diff = diff / yard.unit
        rows = slice(block.row, block.row + diff.shape[0])
        squares[rows] += diff.square().sum(1).cpu()
        counts[rows] += diff.shape[1] if usable is None else usable.sum(1).cpu()
        peak = magnitude(diff)
        if peak > largest:
            largest, worst = peak, block.offset + int(diff.abs().argmax())
    whole = math.sqrt(float(squares.sum()) / max(float(counts.sum()), 1.0))
    return Distance(
        error=max(_ratio(whole, yard.scale), of_fills),
        slices=_ratios((squares / counts.clamp(min=1.0)).sqrt(), yard.slice_scales),
        element=_ratio(largest, yard.element_scale),
        worst=position(out, worst),
    )


def standard(block: Block, reference: int, eager: int) -> torch.Tensor:
    """Return what values are compared with: the reference, and eager's where the reference is not finite.

    Args:
        block: A run of elements.
        reference: Which of its tensors is the reference.
        eager: Which is eager's.
    """
    value = block.exact(reference)
    if math.isfinite(magnitude(value)):
        return value
    return torch.where(torch.isfinite(value), value, block.exact(eager))


def magnitude(values: torch.Tensor) -> float:
    """Return the largest magnitude, NaN or infinity if one is among the values."""
    low, high = torch.aminmax(values)
    least, most = float(low), float(high)
    return math.nan if math.isnan(least) else max(-least, most)


def _difference(block: Block) -> tuple[torch.Tensor, torch.Tensor | None, int | None]:
    """Return the differences, a mask of those that count (None: all), and where a NaN is misplaced."""
    out, reference = block.exact(0), block.exact(1)
    diff = out - reference
    # The reference as the output's dtype would hold it: 7e4 is finite in float32, infinite in float16.
    mine, theirs = block.values[:2]
    held = theirs if theirs.dtype is mine.dtype else theirs.to(mine.dtype)
    if math.isfinite(magnitude(diff)) and (held is theirs or bool(torch.isfinite(held).all())):
        return diff, None, None
    eager, reachable = block.exact(2), torch.isfinite(held).to(out.device)
    finite = torch.isfinite(out)
    same_place = (torch.isnan(out) & torch.isnan(eager)) | (out == eager)
    misplaced = torch.where(finite, ~(torch.isfinite(eager) | reachable), ~same_place)
    if bool(misplaced.any()):
        return diff, None, int(misplaced.flatten().to(torch.uint8).argmax())
    value = standard(block, 1, 2)
    return out - value, finite & torch.isfinite(value), None


def _without_fills(
    diff: torch.Tensor, usable: torch.Tensor | None, value: torch.Tensor, fill: float
) -> tuple[torch.Tensor, float]:
    ordinary = value.abs() < fill  # NaN and infinity are not, and are no fills either
    fills = ~ordinary & torch.isfinite(diff) & torch.isfinite(value)
    error = float((diff[fills] / value[fills]).abs().max()) if bool(fills.any()) else 0.0
    return ordinary if usable is None else ordinary & usable, error


def _shrunk(error: float, factor: float) -> float:
    return error * factor if factor else 0.0


def _ratio(value: float, scale: float) -> float:
    if not scale:
        return math.inf if value else 0.0
    return value / scale


def _ratios(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    exact = torch.where(values > 0, math.inf, 0.0).to(values.dtype)
    return torch.where(scales > 0, values / scales.clamp(min=torch.finfo(torch.float64).tiny), exact)
