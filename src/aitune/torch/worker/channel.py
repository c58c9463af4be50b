"""The channel between a process and its worker: messages over a socket that nothing else writes to."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

__all__ = ["NO_SIGNAL", "Channel", "ClosedError"]

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag for what is sent, so that a process that set ``SIGPIPE`` back, as command lines do, outlives the other side."""

_LENGTH = struct.Struct("!Q")
_LONGEST = 1 << 30
_CHUNK = 1 << 20


class ClosedError(Exception):
    """The other side is gone, or what it sent is no message."""


class Channel:
    """One end. Not for several threads at once.

    Args:
        end: A connected socket; owned from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._read = bytearray()
        self._owner = os.getpid()

    def fileno(self) -> int:
        """Return the file descriptor, to wait for."""
        return self._end.fileno()

    def send(self, message: Any) -> None:
        """Send an object that cloudpickle takes.

        Raises:
            ClosedError: If the other side is gone or takes nothing.
            Exception: What pickling raises.
        """
        data = cloudpickle.dumps(message)
        if os.getpid() != self._owner:  # a process that was forked from the owner and came back instead of ending
            os._exit(1)
        try:
            self._end.sendall(_LENGTH.pack(len(data)) + data, NO_SIGNAL)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive(self) -> Any:
        """Wait for a message.

        Raises:
            ClosedError: If there will be none.
        """
        while True:
            message = self._message()
            if message is not None:
                return pickle.loads(message)
            self._take()

    def receive_if_whole(self) -> Any | None:
        """Read what is there, for an end that is ready to be read; return a message if it is whole now.

        Raises:
            ClosedError: If there will be none.
        """
        message = self._message()
        if message is None:
            self._take()
            message = self._message()
        try:
            return None if message is None else pickle.loads(message)
        except Exception as error:
            raise ClosedError(f"it sent what cannot be read: {error}") from error

    def holds_message(self) -> bool:
        """Whether a whole message was read that :meth:`receive_if_whole` would return without waiting."""
        return len(self._read) >= _LENGTH.size and len(self._read) >= _LENGTH.size + self._length()

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _length(self) -> int:
        length: int = _LENGTH.unpack_from(self._read)[0]
        if length > _LONGEST:
            raise ClosedError("it sent what is no message")
        return length

    def _message(self) -> bytes | None:
        if not self.holds_message():
            return None
        end = _LENGTH.size + self._length()
        message = bytes(self._read[_LENGTH.size : end])
        del self._read[:end]
        return message

    def _take(self) -> None:
        try:
            data = self._end.recv(_CHUNK)
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not data:
            raise ClosedError("it closed its end")
        self._read += data
