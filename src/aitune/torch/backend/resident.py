"""Resident memory that is not needed any more, given back to systems that have a call for it."""

from __future__ import annotations

import contextlib
import ctypes
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
def read_once() -> Iterator[None]:
    """Give back the pages of data in libraries that the block loads: constants in them are copied as they are loaded.

    Their code stays. What is needed after all is read from the file again.
    """
    before = _library_data()
    yield
    for start, end in _library_data() - before:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGE_OUT)


def return_freed() -> None:
    """Give back what the C library keeps of freed memory for later: hundreds of megabytes after engines were closed."""
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def _library_data() -> set[_Mapping]:
    """Return the larger read-only mappings of shared libraries."""
    if not sys.platform.startswith("linux"):
        return set()
    found = set()
    with contextlib.suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            addresses, access, _, _, _, *path = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            if access == "r--p" and end - start >= _LARGE and path and ".so" in path[0]:
                found.add((start, end))
    return found
