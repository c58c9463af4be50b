"""What a person sees while a tune runs: chooses the display that fits ``progress=`` and the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TextIO

from aitune.exceptions import AITuneUserInputError
from aitune.torch.events import Event
from aitune.torch.report.detour import is_terminal
from aitune.torch.report.lines import PlainProgress
from aitune.torch.report.live import LiveProgress
from aitune.torch.report.region import Above

__all__ = ["LiveProgress", "PlainProgress", "Progress", "can_draw", "progress_listener"]

Progress = bool | Callable[[Event], object] | None
"""What ``progress=`` takes."""

_displayed: ContextVar[bool] = ContextVar("aitune_progress_displayed", default=False)


def progress_listener(progress: Progress = None) -> AbstractContextManager[Callable[[Event], None]]:
    """Return a context manager that gives the listener for ``progress``.

    Args:
        progress: None draws on standard error if that is a terminal that can be drawn on, and shows nothing
            otherwise; True writes plain lines otherwise; False shows nothing. A callable is called with every
            event, and what it raises reaches the tune.

    Returns:
        A context manager; enter it around the tune and pass what it gives to
        :func:`aitune.torch.events.listening`. A tune inside a tune gets no display of its own: the outer
        one's hears its events.

    Raises:
        AITuneUserInputError: If ``progress`` is none of these.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise AITuneUserInputError(
            f"progress must be True, False, None or a callable that takes an event, not {progress!r}"
        )
    return _listener(progress)


def can_draw(stream: TextIO | None, environ: Mapping[str, str] | None = None) -> bool:
    """Whether lines of a stream can be redrawn in place.

    It takes a terminal that is neither dumb nor a log, and that nobody draws on already.

    Args:
        stream: Such as ``sys.stderr``; None and closed streams cannot be drawn on.
        environ: Where ``CI`` and ``TERM`` are looked up, the conventions by which logs and dumb terminals are
            told.
    """
    environ = os.environ if environ is None else environ
    if stream is None or not is_terminal(stream) or _is_taken(stream):
        return False
    if environ.get("TERM", "").lower() in ("dumb", "unknown") or environ.get("CI", "").lower() not in (
        "",
        "0",
        "false",
    ):
        return False
    return sys.platform != "win32" or _has_escape_codes(stream)


@contextlib.contextmanager
def _listener(progress: Progress) -> Iterator[Callable[[Event], None]]:
    if callable(progress):
        yield _passing_to(progress)
        return
    stream = sys.stderr  # None under pythonw
    display: AbstractContextManager[Callable[[Event], None]]
    if progress is False or _displayed.get():
        display = contextlib.nullcontext(_nothing)
    elif can_draw(stream):
        display = LiveProgress(stream)
    else:
        display = PlainProgress(stream) if progress else contextlib.nullcontext(_nothing)
    token = _displayed.set(_displayed.get() or isinstance(display, (LiveProgress, PlainProgress)))
    try:
        with display as listener:
            yield listener
    finally:
        _displayed.reset(token)


def _passing_to(callback: Callable[[Event], object]) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        callback(event)

    return listener


def _nothing(event: Event) -> None:
    """Take an event and show nothing."""


def _is_taken(stream: TextIO) -> bool:
    """Whether the stream leads through a live display already, ours in another thread or one of rich's."""
    return isinstance(stream, Above) or hasattr(stream, "rich_proxied_file")


def _has_escape_codes(stream: TextIO) -> bool:
    from rich.console import Console

    return not Console(file=stream).legacy_windows
