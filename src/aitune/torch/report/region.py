"""The lowest lines of a terminal, redrawn in place while everything else goes above them.

``rich.live`` is not used for the drawing: it hides the cursor, which a crash in native code would leave
hidden; it sends what is printed to standard output to its own console, one line a flush, which turns one
progress bar of the tuned function into hundreds of lines; and it ends the process when its stream breaks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

__all__ = ["Above", "Region", "as_stream"]


class Region:
    """A block of lines at the bottom of a terminal. Safe to use from several threads.

    Between two operations the cursor is at the start of the line below the block, so that whatever reaches
    the terminal by another way, or ends the process, finds a clean line.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._lines: list[str] = []
        self._drawn = 0
        self._line_is_open = False  # whether somebody wrote half a line, which the block must not cut in two
        self._open = True

    def show(self, lines: list[str]) -> None:
        """Draw other lines; none of them may be longer than the terminal is wide."""
        with self._lock:
            self._lines = lines
            if self._open and not self._line_is_open:
                self._draw()

    def say(self, line: str) -> None:
        """Write a line that stays, above the block."""
        self.above(self._stream, f"\n{line}\n" if self._line_is_open else f"{line}\n", is_ours=True)

    def above(self, stream: TextIO, text: str, *, is_ours: bool = False) -> int:
        """Write ``text`` above the block, exactly as it is, to a stream that ends at the same terminal.

        Args:
            stream: Where to.
            text: Any text, also half a line or a carriage return: the block then waits for the end of the
                line.
            is_ours: Whether a broken stream is our own matter and not the caller's.
        """
        # In a forked child another thread of the parent may hold the lock for ever.
        if not self._open or os.getpid() != self._process:
            return 0 if is_ours else stream.write(text)
        with self._lock:
            self._erase()
            try:
                written = stream.write(text)
                stream.flush()
            except (OSError, ValueError):
                if not is_ours:
                    raise
                return 0
            if text:
                self._line_is_open = not text.endswith(("\n", "\r"))
            if not self._line_is_open:
                self._draw()
            return written

    def close(self) -> None:
        """Take the block away; streams pass on to the terminal from now on."""
        with self._lock:
            self._erase()
            self._open = False

    def _draw(self) -> None:
        block = "".join(f"\r\x1b[2K{line}\n" for line in self._lines)
        if self._write(self._back() + block):
            self._drawn = len(self._lines)

    def _erase(self) -> None:
        if self._drawn and self._write(self._back()):
            self._drawn = 0

    def _back(self) -> str:
        """Return the codes that lead to the start of the block and erase what is below."""
        return f"\r\x1b[{self._drawn}A\x1b[J" if self._drawn else ""

    def _write(self, text: str) -> bool:
        if not self._open:
            return False
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or the terminal went away: there is nothing left to draw on
            self._open = False
            return False
        return True


class Above:
    """Stands in for a text stream of the terminal: what is written to it appears above a region.

    It works on after the region was closed, since somebody may have kept it.
    """

    def __init__(self, stream: TextIO, region: Region) -> None:
        self._stream = stream
        self._region = region

    def write(self, text: str) -> int:
        """Write like the stream."""
        return self._region.above(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write like the stream."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        if name == "_stream":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._stream, name)


def as_stream(above: Above) -> TextIO:
    """Return ``above`` with the type of what it stands in for."""
    return cast("TextIO", above)
