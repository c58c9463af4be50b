"""Tensors as memory: equality of every bit, digests, and addresses."""

from __future__ import annotations

from collections.abc import Hashable

import torch

__all__ = ["PIECE", "copy_of", "digest", "extent", "same_bits", "same_form", "storage_key"]

PIECE = 1 << 14
"""Elements of host memory to look at in one go, half of those for which torch opens an OpenMP region (GRAIN_SIZE in
ATen/TensorIterator.h): on a busy machine a region can stall for milliseconds, and a module has hundreds of tensors."""

_DEVICE_PIECE = 1 << 23
"""Elements of another device's memory to add up in one go: torch widens them first, in memory of that device."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_form(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether dtype, device, layout and shape are the same."""
    return (
        first.dtype is second.dtype
        and first.device == second.device
        and first.layout is second.layout
        and first.shape == second.shape
    )


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits in the same form: NaN equals itself, 0.0 differs from -0.0.

    Strides may differ. Contents that cannot be looked at (meta tensors) count as the same.
    """
    if not same_form(first, second):
        return False
    if first.device.type == "meta":
        return True
    if first.layout is not torch.strided:
        return same_bits(first.detach().to_dense(), second.detach().to_dense())
    ours, theirs = _words(first), _words(second)
    if first.device.type != "cpu" or not (ours.is_contiguous() and theirs.is_contiguous()):
        return torch.equal(ours, theirs)
    return all(torch.equal(a, b) for a, b in zip(_pieces(ours), _pieces(theirs), strict=True))


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy in memory of its own, with the same strides where they are dense."""
    source = tensor.detach()
    if source.device.type != "cpu" or source.layout is not torch.strided or not source.is_contiguous():
        return source.clone()
    copied = torch.empty_like(source)
    for target, piece in zip(_pieces(copied), _pieces(source), strict=True):
        target.copy_(piece)
    return copied


def digest(tensor: torch.Tensor) -> Hashable:
    """Return a value that changes when the contents do, but for rare coincidences; in one pass."""
    form = (tuple(tensor.shape), str(tensor.dtype))
    if tensor.device.type == "meta" or tensor.layout is not torch.strided or not tensor.numel():
        return form
    words = _in_order(_words(tensor))
    pieces = torch.split(words, PIECE if words.device.type == "cpu" else _DEVICE_PIECE)
    sums = [torch.stack((piece.sum(dtype=torch.int64), piece[::2].sum(dtype=torch.int64))) for piece in pieces]
    total, every_other = torch.stack(sums).sum(0).tolist()
    return (*form, total, every_other)


def storage_key(tensor: torch.Tensor) -> Hashable | None:
    """Return what tensors over one allocation have in common, None for a tensor without memory."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return None
    return tensor.device, tensor.untyped_storage().data_ptr()


def extent(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the addresses of a tensor's first byte and of the byte after its last; None without memory."""
    if storage_key(tensor) is None:
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _in_order(words: torch.Tensor) -> torch.Tensor:
    """Return words flat in the order in which they lie in memory, without a copy where they are dense."""
    strides = words.stride()
    return words.permute(sorted(range(words.dim()), key=lambda axis: -strides[axis])).reshape(-1)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cut contiguous host memory into pieces for which torch opens no OpenMP region."""
    return torch.split(tensor.view(-1), PIECE) if tensor.numel() > PIECE else (tensor,)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.view(_WORDS[plain.element_size()])
