"""Which tensors share memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

from aitune.torch.check.bits import extent

__all__ = ["meeting"]

T = TypeVar("T")


def meeting(tensors: Sequence[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, T]]:
    """Yield the marks of every two tensors whose address ranges meet, the one given earlier first.

    Interleaved views of one allocation count as meeting although they may share no element.
    """
    spans = []
    for order, (_, tensor) in enumerate(tensors):
        span = extent(tensor)
        if span is not None:
            spans.append((str(tensor.device), *span, order))
    open_spans: list[tuple[str, int, int, int]] = []
    for device, start, end, order in sorted(spans):
        open_spans = [other for other in open_spans if other[0] == device and other[2] > start]
        for other in open_spans:
            first, second = sorted((other[3], order))
            yield tensors[first][0], tensors[second][0]
        open_spans.append((device, start, end, order))
