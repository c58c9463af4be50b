"""Calls one after the other, for engines that several threads may not be in at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["serialised"]


def serialised(run: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs one call at a time; a call from within a call of the same thread goes to the original."""
    lock = threading.Lock()
    inside: list[int] = []

    def run_alone(*args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if inside == [me]:
            return original(*args, **kwargs)
        with lock:
            inside.append(me)
            try:
                return run(*args, **kwargs)
            finally:
                inside.clear()

    return run_alone
