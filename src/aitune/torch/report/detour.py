"""Leads what programs print to a terminal through a region, and back again."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

from aitune.torch.report.region import Above, Region, as_stream

__all__ = ["detour", "is_terminal"]


@contextlib.contextmanager
def detour(region: Region) -> Iterator[None]:
    """Send standard output and error, and the log handlers on them, above ``region`` until the block ends.

    A stream that is not a terminal is left alone. What somebody else replaced in the meantime stays as they
    set it.
    """
    present = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    streams = {name: stream for name, stream in present.items() if is_terminal(stream)}
    detours = {name: as_stream(Above(stream, region)) for name, stream in streams.items()}
    moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
    try:
        for name, replacement in detours.items():
            setattr(sys, name, replacement)
            for handler in _handlers_on(streams[name]):
                moved.append((handler, streams[name]))
                handler.setStream(replacement)
        yield
    finally:
        for handler, stream in moved:
            if handler.stream in detours.values():
                handler.setStream(stream)
        for name, replacement in detours.items():
            if getattr(sys, name) is replacement:
                setattr(sys, name, streams[name])


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is an open terminal; also takes what stands in for a stream."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError, OSError):  # no stream at all, or a closed one
        return False


def _handlers_on(stream: TextIO) -> list[logging.StreamHandler[TextIO]]:
    places = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    loggers = [logger for logger in places if isinstance(logger, logging.Logger)]
    handlers = dict.fromkeys(handler for logger in loggers for handler in logger.handlers)
    # The handler of last resort looks up sys.stderr by itself each time, and cannot be set.
    streaming = [h for h in handlers if isinstance(h, logging.StreamHandler) and h is not logging.lastResort]
    return [handler for handler in streaming if handler.stream is stream]
