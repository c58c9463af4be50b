"""Digests of bulk data: tensors and files, in chunks that several threads work on at once.

Memory of the CPU and files are digested by BLAKE3, chunk by chunk, and the digests of the chunks once more (it lets go
of the interpreter lock, so threads add up): 5 GB/s a thread, and as hard to forge as SHA-256, so that one digest serves
weights and the engine files of a checkpoint that may come from anybody.

A tensor on another device is mixed there, since carrying it to the CPU would take longer than everything else: every
64-bit word is scrambled together with its place, words are added up by rows of 512, and the sums, 1/32 of the memory,
are digested on the CPU. A row keeps 128 bits, so that no two sets of weights meet by chance. Somebody who makes weights
up could have two meet, and gains nothing by it: an engine is held against the module's own answers before it serves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from blake3 import blake3

__all__ = ["CHUNK", "Way", "file_digest", "tensor_digests"]

CHUNK = 4 << 20
"""Bytes that are digested at a time; part of what a digest is, so that it may not change within a format."""

_ROW = 512
_MIXED_CHUNK = 8 << 20  # bytes; larger, since each takes some dozens of kernels to be started
_FACTORS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # odd, as signed 64-bit numbers


Way = Literal["hashed", "mixed"]
"""How the memory of a tensor is digested; the two give different digests of the same values."""


def tensor_digests(tensors: Sequence[torch.Tensor], way: Way | None = None) -> list[str]:
    """Return the digest of the values of each tensor, in order.

    Sizes, dtypes and strides are not part of it. Nothing is modified. A tensor on another device than the CPU has
    another digest than the same values on the CPU.

    Args:
        tensors: Strided tensors with memory of their own.
        way: One way for all, to compare with digests that were made on another device; None takes that of the device.
    """
    if way == "hashed":
        tensors = [tensor.cpu() for tensor in tensors]
    flat = [_flat(tensor) for tensor in tensors]
    mixed = [data.device.type != "cpu" or way == "mixed" for data in flat]
    sizes = [_MIXED_CHUNK if one else CHUNK for one in mixed]
    pieces = [(i, start) for i, data in enumerate(flat) for start in range(0, max(len(data), 1), sizes[i])]

    def digest(piece: tuple[int, int]) -> tuple[int, bytes]:
        index, start = piece
        data = flat[index][start : start + sizes[index]]
        return index, _mixed(data) if mixed[index] else blake3(data.numpy().data).digest()

    # On a device threads gain nothing, and each would take several times a chunk of its memory.
    workers = 1 if any(mixed) else _workers()
    with torch.inference_mode(), ThreadPoolExecutor(workers) as pool:
        parts: list[list[bytes]] = [[] for _ in flat]
        for index, part in pool.map(digest, pieces):
            parts[index].append(part)
    return [_joined(part, len(data)) for part, data in zip(parts, flat, strict=True)]


def file_digest(path: Path, size: int | None = None) -> str:
    """Return the digest of a file.

    Args:
        path: The file.
        size: How long it is expected to be; reading stops soon behind that.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if size is not None and length != size:
            return ""

        def digest(start: int) -> bytes:
            return blake3(_read(file.fileno(), start, CHUNK)).digest()

        with ThreadPoolExecutor(_workers()) as pool:
            return _joined(pool.map(digest, range(0, max(length, 1), CHUNK)), length)


def _read(descriptor: int, start: int, count: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, start)
    with os.fdopen(os.dup(descriptor), "rb") as file:  # pragma: no cover - Windows, where one thread reads
        file.seek(start)
        return file.read(count)


def _workers() -> int:
    return max(1, min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _joined(parts: Iterable[bytes], length: int) -> str:
    whole = blake3(length.to_bytes(8, "little"))
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as bytes, without a copy where they lie in order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _mixed(data: torch.Tensor) -> bytes:
    """Digest the bytes of a tensor on its own device. Also right on the CPU, only slower than hashing."""
    rest = len(data) % 8
    tail = bytes(data[len(data) - rest :].cpu().numpy()) if rest else b""
    words = data[: len(data) - rest].clone().view(torch.int64)  # a copy: a view may start at any byte
    return blake3(tail + bytes(_row_sums(words).cpu().numpy().data.cast("B"))).digest()


def _row_sums(words: torch.Tensor) -> torch.Tensor:
    """Return two sums for each row of words: the words, scrambled with their place, added up modulo 2**64."""
    place = torch.arange(1, 1 + len(words), device=words.device, dtype=torch.int64)
    return torch.cat([_rows(_scrambled(words + place * factor)) for factor in _FACTORS[:2]])


def _scrambled(words: torch.Tensor) -> torch.Tensor:
    """Map every word to another one, one to one, so that each bit depends on all (the finaliser of splitmix64)."""
    for shift, factor in ((30, _FACTORS[1]), (27, _FACTORS[2])):
        words = (words ^ _shifted(words, shift)) * factor
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right and fill with zeros: torch fills with the sign."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def _rows(words: torch.Tensor) -> torch.Tensor:
    missing = -len(words) % _ROW
    padded = torch.nn.functional.pad(words, (0, missing))
    return padded.view(-1, _ROW).sum(1)
