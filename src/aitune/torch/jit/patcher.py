"""Turning just-in-time tuning on and off; every function here may be called any number of times."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from aitune.torch.jit.config import JITMode, jit_config
from aitune.torch.jit.patched_module import JITState, forest, history
from aitune.torch.jit.session import Session
from aitune.torch.jit.summary import Summary
from aitune.torch.module.handle import find_handle
from aitune.torch.module.holdings import modules_in
from aitune.torch.module.slot import Slot, current

__all__ = [
    "disable_jit_tuning",
    "enable_inspection",
    "enable_jit_tuning",
    "patch_for_jit_tuning",
    "prepare_for_jit_tuning",
    "session",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_summary = Summary()

session = Session(forest, history, _summary)
"""The one of this process; idle until it is enabled."""


def enable_jit_tuning(*, summary: bool = False) -> None:
    """Discover and tune every module that the program calls from now on, whenever it was made.

    Args:
        summary: Whether a line at exit says what was tuned, where ``jit_config.summary`` is None.
    """
    _at_first_use()
    _summary.wanted = _summary.wanted or summary
    if not session.interception.everywhere:
        session.interception.see_all()
        history.add(f"Just-in-time tuning enabled, mode={jit_config.mode}")


def disable_jit_tuning() -> None:
    """Undo everything: no call is seen any more, and every module that was tuned runs as the program wrote it."""
    was_on = session.interception.everywhere or bool(forest.all())
    session.interception.stop()
    for node in forest.all():
        module = node.module
        handle = find_handle(module) if module is not None else None
        if node.state is JITState.TUNED and handle is not None:
            handle.untune()
    session.restart()
    if was_on:
        history.add("Just-in-time tuning disabled")


def enable_inspection() -> None:
    """Look at every module that the program calls from now on, and tune none."""
    jit_config.mode = JITMode.INSPECT
    enable_jit_tuning()


@contextlib.contextmanager
def prepare_for_jit_tuning() -> Iterator[None]:
    """Tune the modules that this thread makes in the block, and no others; also after the block."""
    _at_first_use()
    thread, original = threading.get_ident(), torch.nn.Module.__init__

    @functools.wraps(original)
    def init(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        if threading.get_ident() == thread and init in _preparing:
            session.interception.see(module)

    init.is_ours = True  # type: ignore[attr-defined]
    _preparing.append(init)
    torch.nn.Module.__init__ = init  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _preparing.remove(init)
        _take_back()


def patch_for_jit_tuning(function: Function) -> Function:
    """Tune the modules that a function makes or returns, and no others; a decorator.

    What the function returns may be a module, or an object or container that holds modules, such as a pipeline.
    """

    @functools.wraps(function)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        with prepare_for_jit_tuning():
            result = function(*args, **kwargs)
        for module in modules_in(result, 3):
            for part in module.modules():
                session.interception.see(part)
        return result

    return prepared  # type: ignore[return-value]


_preparing: list[Callable[..., Any]] = []


def _take_back() -> None:
    """Put the constructor back, as far as no block that is still open stands over it."""
    top: Any = torch.nn.Module.__init__
    while getattr(top, "is_ours", False) and top not in _preparing:
        top = top.__wrapped__
        torch.nn.Module.__init__ = top  # type: ignore[method-assign]


@functools.cache
def _at_first_use() -> None:
    """Ask to be told of the process's end, and of forks."""
    atexit.register(_summary.show)
    atexit.register(session.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_stand_down)


def _stand_down() -> None:
    """In a forked child: threads of engines, and whoever holds a lock, stayed in the parent. Run the originals."""
    _summary.wanted = False
    tuned = [node.module for node in forest.seen() if node.state is JITState.TUNED]
    session.forget()
    for module in tuned:
        if module is not None and hasattr(current(module), "dispatcher"):
            Slot(module, None).remove()
