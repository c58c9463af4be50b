"""The TensorRT library that is installed, and what it says while it works."""

from __future__ import annotations

import collections
import functools
import importlib
import logging
from typing import Any

from aitune.torch.backend.availability import is_installed

__all__ = ["LIBRARIES", "errors_of", "import_library", "is_rtx", "logger_of"]

_log = logging.getLogger(__name__)

LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""Import names, in order of preference; the second is TensorRT for RTX, with the same API and kernels that are
compiled where they run."""

_KEPT = 8


def import_library() -> Any:
    """Import the first library that is installed.

    Raises:
        ImportError: If there is none, or it does not work here.
    """
    name = next((name for name in LIBRARIES if is_installed(name)), LIBRARIES[0])
    return importlib.import_module(name)


def is_rtx(trt: Any) -> bool:
    """Whether a library is TensorRT for RTX."""
    # Torch-TensorRT for RTX puts a stand-in of this name in the place of "tensorrt".
    return str(getattr(trt, "_package_name", trt.__name__)).endswith("_rtx")


@functools.cache
def logger_of(trt: Any) -> Any:
    """Return the one logger of a library: it keeps the first that it sees for as long as the process lives."""

    class Messages(trt.ILogger):  # type: ignore[misc]
        """Passes messages on to Python's logging, and remembers the last errors."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: collections.deque[str] = collections.deque(maxlen=_KEPT)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(message)
                _log.debug("%s", message)

    return Messages()


def errors_of(trt: Any, before: int = 3) -> str:
    """Return the last errors in a sentence, and forget them."""
    messages = logger_of(trt).errors
    text = "; ".join(" ".join(message.split())[:200] for message in list(messages)[-before:])
    messages.clear()
    return text or "it gives no reason"
