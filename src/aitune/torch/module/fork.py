"""What a forked child of the process must know: engines have threads, and threads do not survive a fork."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

__all__ = ["keep_for_ever", "tell_after_fork"]


class _Forkable(Protocol):
    def forked(self) -> None: ...


_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[bool] = []
_kept: list[Any] = []


def tell_after_fork(listener: _Forkable) -> None:
    """Call ``listener.forked()`` in every child that is forked from now on, as long as the listener lives.

    It is called before anything else runs there, in the child's only thread; locks may be held by threads that do not
    exist. Python is asked for this with the first listener: importing aitune asks nothing.
    """
    _listeners.add(listener)
    if not _registered:
        _registered.append(True)
        os.register_at_fork(after_in_child=_in_child)


def keep_for_ever(value: Any) -> None:
    """Never let go of an object: in a child, the destructors of engines would wait for threads that are not there."""
    _kept.append(value)


def _in_child() -> None:
    for listener in list(_listeners):
        listener.forked()
