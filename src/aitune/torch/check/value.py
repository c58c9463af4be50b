"""Whether one value is another: by distance where it is floating, exactly where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aitune.torch.check.alignment import alignment
from aitune.torch.check.bits import same_bits
from aitune.torch.check.bounds import Bounds, Limits
from aitune.torch.check.distance import Distance, Yardstick, distance
from aitune.torch.graph.spec import Opaque, constant_or_opaque, same_constant

__all__ = ["Finding", "compare_exactly", "compare_numbers", "compare_places"]

_ALIGNED = 0.5


@dataclass(frozen=True)
class Finding:
    """What came of comparing one value.

    Attributes:
        mismatch: What is wrong, as the end of a sentence; None if nothing is.
        error: Relative L2 error, or that of the slice or element that went beyond its bound; None where not
            measured.
        bound: What ``error`` was held against.
    """

    mismatch: str | None = None
    error: float | None = None
    bound: float | None = None


def compare_exactly(got: Any, expected: Any) -> Finding:
    """Compare integers, bools, strings, None and whatever else has no distance."""
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        return Finding(None if same_bits(got, expected) else _differing(got, expected))
    if isinstance(got, (np.ndarray, np.generic)):
        same = got.dtype == expected.dtype and np.array_equal(got, expected)
        return Finding(None if same else "has other values than the module's")
    try:
        same = same_constant(got, expected)
    except Exception:  # noqa: BLE001 - a user's class may define equality in any way
        same = False
    if same or got is expected:
        return Finding()
    if type(got) is type(expected) and isinstance(constant_or_opaque((), got), Opaque):
        return Finding(f"is a {type(got).__qualname__} that does not equal the module's, or cannot be compared")
    return Finding(f"is {_short(got)}, the module's is {_short(expected)}")


def compare_places(got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor, yard: Yardstick) -> Finding:
    """Compare where NaN and infinity are; the error is measured, and held to nothing."""
    found = distance(got, reference, eager, yard)
    misplaced = _misplaced(found, got, eager)
    return Finding(misplaced, None if misplaced else found.error)


def compare_numbers(
    got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor, yard: Yardstick, bounds: Bounds
) -> Finding:
    """Compare floating or complex values with the reference, as ``bounds`` and eager's own error allow.

    What has the bits of eager's own output is right whatever its error. Where eager itself is so far from the
    reference that 4 times its error would let zeros pass, values beyond ``CEILING`` are right only if they point
    the same way as well.
    """
    limit = bounds.limits(yard, got.dtype)
    if same_bits(got, eager):
        return Finding(None, yard.error, max(limit.whole, yard.error))
    measured = distance(got, reference, eager, yard)
    misplaced = _misplaced(measured, got, eager)
    if misplaced is not None:
        return Finding(misplaced)
    found = _within(measured, limit, yard, bounds)
    loose = bounds.loose(yard)
    if found.mismatch is None or loose is None or measured.error > loose:
        return found
    return Finding(None, measured.error, loose) if _aligned(got, reference, eager, yard) else found


def _aligned(got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor, yard: Yardstick) -> bool:
    """Whether values point half as much the way of the reference as eager's do, or the way of eager's."""
    own, theirs = alignment(eager, reference, yard.unit), alignment(got, reference, yard.unit)
    if own < 0:  # then the sign is noise, too
        own, theirs = -own, abs(theirs)
    return (own >= _ALIGNED and theirs >= own / 2) or alignment(got, eager, yard.unit) >= _ALIGNED


def _within(found: Distance, limit: Limits, yard: Yardstick, bounds: Bounds) -> Finding:
    if not found.error <= limit.whole:
        return Finding(
            f"has a relative error of {found.error:.2g}, worst at {list(found.worst)},"
            f" at most {limit.whole:.2g} is allowed ({bounds})",
            found.error,
            limit.whole,
        )
    if found.slices.numel() > 1 and yard.slice_errors is not None:
        allowed = bounds.of_slices(limit, yard.slice_errors)
        excess = (found.slices / allowed).nan_to_num(0.0)
        worst = int(excess.argmax())
        if float(found.slices[worst]) > float(allowed[worst]):
            error, bound = float(found.slices[worst]), float(allowed[worst])
            return Finding(
                f"has an error of {error:.2g} of its scale in entry {worst} of its first axis, worst at"
                f" {list(found.worst)}, at most {bound:.2g} is allowed ({bounds})",
                error,
                bound,
            )
    if not found.element <= limit.element:
        return Finding(
            f"is off by {found.element:.2g} of its scale at {list(found.worst)}, at most {limit.element:.2g}"
            f" is allowed ({bounds})",
            found.element,
            limit.element,
        )
    return Finding(None, found.error, limit.whole)


def _misplaced(found: Distance, got: torch.Tensor, eager: torch.Tensor) -> str | None:
    if found.misplaced is None:
        return None
    mine, theirs = got[found.misplaced].item(), eager[found.misplaced].item()
    return f"is {mine:.4g} at {list(found.misplaced)}, where the module's is {theirs:.4g}"


def _differing(got: torch.Tensor, expected: torch.Tensor) -> str:
    places = (got != expected.to(got.device)).nonzero()
    if not len(places):
        return "has other bits than the module's"
    first = tuple(int(i) for i in places[0])
    return (
        f"differs in {len(places)} of {got.numel()} values, first at {list(first)}:"
        f" {got[first].item()} instead of {expected[first].item()}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__qualname__} {text if len(text) <= 60 else text[:57] + '...'}"
