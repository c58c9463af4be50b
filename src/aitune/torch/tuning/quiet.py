"""Silence for other libraries' loggers while a tune runs (``disable_external_logging``)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["external_logging_disabled"]


@contextlib.contextmanager
def external_logging_disabled(active: bool) -> Iterator[None]:
    """Drop the records of every logger that is not aitune's in the block, also of loggers that are made meanwhile.

    Args:
        active: Whether to do anything.
    """
    if not active:
        yield
        return
    external = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and not logger.disabled and not _ours(name)
    ]
    handlers = [(handler, _OursOnly()) for handler in logging.root.handlers]
    for logger in external:
        logger.disabled = True
    for handler, keep in handlers:
        handler.addFilter(keep)
    try:
        yield
    finally:
        for logger in external:
            logger.disabled = False
        for handler, keep in handlers:
            handler.removeFilter(keep)


class _OursOnly(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return _ours(record.name)


def _ours(name: str) -> bool:
    return name == "aitune" or name.startswith("aitune.")
