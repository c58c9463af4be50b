"""Resident memory that is not needed any more, given back to systems that have a call for it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["read_once", "return_freed"]

_PAGE_OUT = 21
"""``MADV_PAGEOUT`` of Linux: pages leave memory, and come back from their file when they are touched."""

_LARGE = 1 << 20

_Mapping = tuple[int, int]
"""First address and the one behind the last."""


@contextlib.contextmanager
def read_once(folder: Path | None = None) -> Iterator[None]:
    """Give back the pages of data in files that the block maps: constants in them are copied as they are loaded.

    Code stays. What is needed after all is read from the file again.

    Args:
        folder: Where the files are; None takes every shared library.
    """
    before = _mapped_data(folder)
    yield
    for start, end in _mapped_data(folder) - before:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGE_OUT)


def return_freed() -> None:
    """Give back what the C library keeps of freed memory for later: hundreds of megabytes after engines were closed.

    Cycles of objects are collected first: engines are part of some.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def _mapped_data(folder: Path | None) -> set[_Mapping]:
    """Return the larger read-only mappings of files in a folder, or of shared libraries."""
    if not sys.platform.startswith("linux"):
        return set()
    found = set()
    inside = "" if folder is None else f"{folder.resolve()}/"
    with contextlib.suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            addresses, access, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            if not access.startswith("r--") or end - start < _LARGE or not path:
                continue
            if path[0].startswith(inside) if inside else ".so" in path[0]:
                found.add((start, end))
    return found
