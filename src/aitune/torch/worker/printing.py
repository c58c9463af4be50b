"""What a worker prints, whatever a builder did to its streams."""

from __future__ import annotations

import contextlib
import sys
import traceback

__all__ = ["flush", "show"]


def show(error: BaseException) -> None:
    """Print an exception with its traceback, for the log."""
    with contextlib.suppress(Exception):
        traceback.print_exception(type(error), error, error.__traceback__)


def flush() -> None:
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
