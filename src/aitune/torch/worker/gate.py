"""The gate between building, which several workers do at once, and measuring, which one does alone."""

from __future__ import annotations

import threading

__all__ = ["ClosedGateError", "Gate"]


class ClosedGateError(Exception):
    """Nobody passes any more."""


class Gate:
    """Lets those that have built pass one at a time, once nobody builds any more.

    Args:
        builders: How many build.
    """

    def __init__(self, builders: int) -> None:
        self._building = builders
        self._inside = False
        self._closed = False
        self._changed = threading.Condition()

    def pass_through(self) -> None:
        """Say that a build is over, and wait for the turn.

        Raises:
            ClosedGateError: If there will be none.
        """
        with self._changed:
            self._building -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or not (self._building or self._inside))
            if self._closed:
                raise ClosedGateError
            self._inside = True

    def leave(self, *, passed: bool) -> None:
        """Say that an attempt is over.

        Args:
            passed: Whether it passed; a build that failed never did.
        """
        with self._changed:
            if passed:
                self._inside = False
            else:
                self._building -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Send everybody away who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
