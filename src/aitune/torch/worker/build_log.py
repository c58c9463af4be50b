"""The log of a build: what a builder prints, with the middle of a flood left out.

Imports neither torch nor anything of aitune, as the guard of a worker does.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import BinaryIO

__all__ = ["BuildLog"]

HEAD = 4 << 20
"""Bytes that are kept from the start."""

TAIL = 1 << 20
"""Bytes that are kept from the end."""


class BuildLog:
    """Takes output, and keeps its start and its end in a file; a file that cannot be written to is gone without.

    Args:
        file: Made with the first byte; what is there already stays before it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sink: BinaryIO | None = None
        self._room = HEAD
        self._tail: deque[bytes] = deque()
        self._held = 0
        self._left_out = 0
        self._broken = False

    def write(self, data: bytes) -> None:
        """Take output."""
        if self._room > 0:
            self._append(data[: self._room])
            data, self._room = data[self._room :], self._room - len(data)
        if data:
            self._tail.append(data)
            self._held += len(data)
            while self._held - len(self._tail[0]) >= TAIL:
                dropped = len(self._tail.popleft())
                self._held -= dropped
                self._left_out += dropped

    def close(self) -> None:
        """Write the end."""
        if self._left_out:
            self._append(f"\n[... {self._left_out} bytes of output are left out here ...]\n".encode())
        for data in self._tail:
            self._append(data)
        self._tail.clear()
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _append(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            if self._sink is None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._sink = self._file.open("ab", buffering=0)
            self._sink.write(data)
        except OSError:  # a full disk must not stop a build
            self._broken = True
