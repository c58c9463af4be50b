"""How far two tensors point the same way, whatever their size."""

from __future__ import annotations

import math

import torch

from aitune.torch.check.blocks import blocks

__all__ = ["alignment"]


def alignment(first: torch.Tensor, second: torch.Tensor, unit: float) -> float:
    """Return the cosine between two tensors of one shape, from -1 to 1; 0 where one of them is zero.

    Elements at which either is NaN or infinite are left out.

    Args:
        first: A floating or complex tensor.
        second: Another one.
        unit: A magnitude to divide by first, so that squares neither overflow nor vanish.
    """
    dot = first_squares = second_squares = 0.0
    for block in blocks((first, second)):
        a, b = block.exact(0) / unit, block.exact(1) / unit
        usable = torch.isfinite(a) & torch.isfinite(b)
        a, b = torch.where(usable, a, 0.0), torch.where(usable, b, 0.0)
        dot += float((a * b).sum())
        first_squares += float(a.square().sum())
        second_squares += float(b.square().sum())
    lengths = math.sqrt(first_squares) * math.sqrt(second_squares)
    return dot / lengths if lengths and math.isfinite(lengths) else 0.0
