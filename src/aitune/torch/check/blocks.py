"""Equally shaped tensors in float64, a block at a time, so that a huge output is never converted whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from aitune.torch.check.bits import PIECE

__all__ = ["Block", "blocks", "position"]

# On the host a block stays in a cache and opens no OpenMP region; on a device few launches matter more.
_ELEMENTS_OF_DEVICE = 1 << 23


@dataclass(frozen=True, eq=False)
class Block:
    """A run of elements that is contiguous in the tensors' logical order.

    Attributes:
        row: Index along the leading axis of the first row.
        offset: Logical position of the first number; complex elements are two numbers.
        values: For each tensor its numbers in its own dtype, ``[rows, numbers]``.
    """

    row: int
    offset: int
    values: tuple[torch.Tensor, ...]

    def exact(self, which: int) -> torch.Tensor:
        """Return the numbers of one tensor as float64; on the host where the device has no float64."""
        values = self.values[which]
        return (values.cpu() if values.device.type == "mps" else values).to(torch.float64)


def blocks(tensors: Sequence[torch.Tensor]) -> Iterator[Block]:
    """Yield all elements of tensors of one shape, aligned. Nothing for empty ones; 0-d counts as one row."""
    first = tensors[0]
    if not first.numel():
        return
    if not first.dim():
        tensors = [tensor.reshape(1) for tensor in tensors]
    rows = tensors[0].shape[0]
    limit = PIECE if first.device.type == "cpu" else _ELEMENTS_OF_DEVICE
    step = max(1, limit // (first.numel() // rows))
    for row in range(0, rows, step):
        parts = [_numbers(tensor.narrow(0, row, min(step, rows - row))) for tensor in tensors]
        width = parts[0].shape[1]
        for left in range(0, width, limit if step == 1 else width):
            right = left + limit if step == 1 else width
            yield Block(row, row * width + left, tuple(part[:, left:right] for part in parts))


def position(tensor: torch.Tensor, number: int) -> tuple[int, ...]:
    """Return the index of the element that a logical position of :class:`Block` lies in."""
    index = []
    rest = number // 2 if tensor.is_complex() else number
    for size in reversed(tensor.shape):
        index.append(rest % size if size else 0)
        rest = rest // size if size else 0
    return tuple(reversed(index))


def _numbers(rows: torch.Tensor) -> torch.Tensor:
    plain = rows.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.reshape(rows.shape[0], -1)
