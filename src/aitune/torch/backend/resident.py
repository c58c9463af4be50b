"""Resident memory that is not needed any more, given back to systems that have a call for it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["read_once", "return_freed"]

_DONT_NEED = 4
"""``MADV_DONTNEED`` of Linux: pages leave this process, stay in the system's cache, and come back when touched."""

_LARGE = 1 << 20

_Mapping = tuple[int, int]
"""First address and the one behind the last."""


@contextlib.contextmanager
def read_once(folder: Path | None = None) -> Iterator[None]:
    """Give back the pages of data in files that the block maps: constants in them are copied as they are loaded.

    Code stays, and so does what was written to (addresses that the loader filled in). What is needed after all comes
    back from the system's cache of the file.

    Args:
        folder: Where the files are; None takes every shared library.
    """
    before = _mapped_data(folder)
    yield
    for start, end in _mapped_data(folder) - before:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def return_freed(*, cycles: bool = False) -> None:
    """Give back what the C library keeps of freed memory for later: hundreds of megabytes after engines were closed.

    Args:
        cycles: Whether to collect cycles of objects first, which takes a fifth of a second in a large program: the way
            from a module to its engine is one.
    """
    if cycles:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def _mapped_data(folder: Path | None) -> set[_Mapping]:
    """Return the larger mappings of files in a folder, or of shared libraries, that are read only and never written."""
    if not sys.platform.startswith("linux"):
        return set()
    found: set[_Mapping] = set()
    inside = "" if folder is None else f"{folder.resolve()}/"
    latest: _Mapping | None = None
    with contextlib.suppress(OSError), Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            first, *rest = line.rstrip("\n").split(maxsplit=5)
            if not first.endswith(":"):  # what follows is about this mapping
                start, end = (int(address, 16) for address in first.split("-"))
                file = rest[4] if len(rest) > 4 else ""
                wanted = file.startswith(inside) if inside else ".so" in file
                readable = rest[0].startswith("r--") and end - start >= _LARGE
                latest = (start, end) if wanted and readable else None
            elif first == "Anonymous:" and rest[0] == "0" and latest is not None:
                found.add(latest)
    return found
