"""Running a foreign builder in this process without letting it change the process (decision 21)."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from aitune.torch.check.ambient import Ambient
from aitune.torch.config import console_output

__all__ = ["process_state_kept"]


@contextlib.contextmanager
def process_state_kept(log: Path | None) -> Iterator[None]:
    """Send output of the block to a file, and put global state back when it ends.

    Covers Python's and torch's and numpy's random state, grad mode, autocast, default dtype and device, thread counts,
    treatment of denormal numbers and of numpy's floating-point errors, how torch and numpy print, working folder,
    environment, file mode mask, warning filters, logging levels and handlers, signal handlers with the timer that sends
    one, ``sys.stdout`` and ``sys.stderr``. Output that native code writes to the file descriptors is not covered: that
    takes a process of its own.

    Args:
        log: File that takes the output; appended to. None leaves output alone, for a process whose output is caught.
    """
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    restores = [
        *(_random_state(), _torch_state(), _numbers(), _printing()),
        *(_surroundings(), _logging_state(), _signals()),
    ]
    with contextlib.ExitStack() as stack:
        if log is not None:
            _send_output(stack, log)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for restore in restores:
                restore()


def _send_output(stack: contextlib.ExitStack, log: Path) -> None:
    sink: IO[str] = stack.enter_context(log.open("a", encoding="utf-8", errors="replace"))
    if not console_output():
        stack.enter_context(_logging_to(sink))
        stack.enter_context(contextlib.redirect_stdout(sink))
        stack.enter_context(contextlib.redirect_stderr(sink))


def _random_state() -> Callable[[], None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore


def _torch_state() -> Callable[[], None]:
    ambient, device, depth = Ambient.capture(), torch.get_default_device(), sys.getrecursionlimit()

    def restore() -> None:
        sys.setrecursionlimit(depth)
        ambient.restore()
        if torch.get_default_device() != device:
            torch.set_default_device(device)

    return restore


def _numbers() -> Callable[[], None]:
    errors, flushed = np.geterr(), _flushes_denormals()

    def restore() -> None:
        np.seterr(**errors)
        if _flushes_denormals() != flushed:
            torch.set_flush_denormal(flushed)

    return restore


def _flushes_denormals() -> bool:
    """Whether this thread's processor takes numbers below the normal ones for 0, which nobody can be asked."""
    return sys.float_info.min / 2 == 0.0


def _printing() -> Callable[[], None]:
    of_torch, of_numpy = dict(vars(torch._tensor_str.PRINT_OPTS)), np.get_printoptions()

    def restore() -> None:
        vars(torch._tensor_str.PRINT_OPTS).update(of_torch)
        if np.get_printoptions() != of_numpy:
            np.set_printoptions(**of_numpy)

    return restore


def _signals() -> Callable[[], None]:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    restore_timer = _timer() if hasattr(signal, "setitimer") else None

    def restore() -> None:
        if restore_timer is not None:
            restore_timer()
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError, ValueError):  # only the main thread may, and only it could change it
                    signal.signal(number, handler)

    return restore


def _timer() -> Callable[[], None]:
    """Return what has the timer that sends a signal go on as if nobody had touched it."""
    (left, interval), started = signal.getitimer(signal.ITIMER_REAL), time.monotonic()

    def restore() -> None:
        once = left > 0 and not interval
        wanted = max(left - (time.monotonic() - started), 1e-3) if once else left
        now, repeated = signal.getitimer(signal.ITIMER_REAL)
        if repeated != interval or (abs(now - wanted) > 1 if once else (now > 0) != (left > 0)):
            signal.setitimer(signal.ITIMER_REAL, wanted, interval)

    return restore


def _surroundings() -> Callable[[], None]:
    folder, environment, path = _folder(), dict(os.environ), list(sys.path)
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)

    def restore() -> None:
        os.umask(mask)
        if folder is not None and _folder() != folder:
            with contextlib.suppress(OSError):  # it was removed meanwhile
                os.chdir(folder)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        sys.path[:] = path

    return restore


def _folder() -> Path | None:
    """Return the working folder, None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _loggers() -> list[logging.Logger]:
    named = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in list(named) if isinstance(logger, logging.Logger))]


def _logging_state() -> Callable[[], None]:
    kept: list[tuple[logging.Logger, int, bool, bool, list[Any]]] = [
        (logger, logger.level, logger.propagate, logger.disabled, list(logger.handlers)) for logger in _loggers()
    ]
    threshold = logging.root.manager.disable

    def restore() -> None:
        for logger, level, propagate, disabled, handlers in kept:
            logger.propagate, logger.disabled = propagate, disabled
            if logger.level != level:
                logger.setLevel(level)
            logger.handlers[:] = handlers
        logging.disable(threshold)

    return restore


@contextlib.contextmanager
def _logging_to(sink: IO[str]) -> Iterator[None]:
    """Send what handlers would print to the log: libraries' own handlers hold the console's streams."""
    console = [stream for stream in (sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr) if stream is not None]
    moved = [(handler, handler.stream) for handler in _stream_handlers() if handler.stream in console]
    for handler, _ in moved:
        handler.stream = sink  # not setStream(), which flushes: a daemon's standard error may be closed
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.stream = stream
        for handler in _stream_handlers():
            if handler.stream is sink:  # made meanwhile, while the sink stood in for the console
                handler.stream = sys.__stderr__ if sys.__stderr__ is not None else _nowhere()


def _nowhere() -> IO[str]:
    """Return a stream that forgets what is written, for a process without a standard error."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """Return every handler that writes to a stream and is no file."""
    return [
        handler
        for logger in _loggers()
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
    ]
