"""A worker as the process that asks for it sees it: an interpreter of its own, below a guard."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

from aitune.torch.config import console_output
from aitune.torch.measure.control_group import left_in_control_group
from aitune.torch.worker.channel import NO_SIGNAL, Channel, ClosedError
from aitune.torch.worker.guard import START
from aitune.torch.worker.messages import Answer, Go, Ready, Stage, Turn
from aitune.torch.worker.module_files import nothing_hidden
from aitune.torch.worker.process_tree import MARK, end_marked, signal_name

__all__ = ["LostError", "WorkerProcess", "hindrance"]

_CHILD = """
import sys
channel, sys.path[:] = int(sys.argv[1]), sys.argv[2:]
del sys.argv[1:]
from aitune.torch.worker.child import main
main(channel)
"""
_START_SECONDS = 120.0
_END_SECONDS = 2.0
_LAST_LINES = 3
_LONGEST_WAIT = 86_400.0
_FLAGS = {
    "optimize": "O",
    "isolated": "I",
    "ignore_environment": "E",
    "no_user_site": "s",
    "no_site": "S",
    "dont_write_bytecode": "B",
}
"""Options of the interpreter by the name of their flag that change what code does, or which modules there are."""
_NOT_INHERITED = ("AUTOWRAPT_BOOTSTRAP", "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT")


class LostError(Exception):
    """A worker is gone; every process of it has ended, or will.

    Args:
        kind: ``crash``, ``time``, ``memory`` or ``start``.
        reason: What happened, in words.
        signal: The signal that ended it, None if none did.
    """

    def __init__(self, kind: str, reason: str, signal: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.signal = signal


def hindrance() -> str | None:
    """Return why no worker can be started from this process, None if one can."""
    if os.name != "posix":
        return "workers need a POSIX system"
    if getattr(sys, "frozen", False) or "__compiled__" in sys.modules.get("__main__", sys).__dict__:
        return "this is a frozen application, whose executable is no Python interpreter"
    name = Path(sys.executable or "").name.lower()
    if not name.startswith(("python", "pypy")) or not os.access(sys.executable, os.X_OK):
        return f"sys.executable, {sys.executable!r}, is no Python interpreter"
    return None


class WorkerProcess:
    """An interpreter that takes requests one at a time, with a guard above it. Not for several threads at once.

    Starting one does not wait: the interpreter gets ready meanwhile.

    Attributes:
        stage: What it is doing.
        holder: Folder of the assignment that it has; None before it has one.
        used: Whether a candidate was tried in it.

    Raises:
        LostError: If it cannot be started at all.
    """

    def __init__(self) -> None:
        self.stage = "starting"
        self.holder: Path | None = None
        self.used = False
        self._ready = False
        self._over = False
        self._reports = b""
        self._mark = secrets.token_hex(16)
        self._owner = os.getpid()
        try:
            self._start()
        except OSError as error:
            raise LostError("start", f"a worker process cannot be started: {error}") from error
        _forget_in_forks()
        _OPEN.add(self)
        # Also when this process ends, or nobody holds this object any more.
        self._finalizer = weakref.finalize(
            self, _end, self._guard, self._channel, self._orders, self._reported, self._mark, self._owner
        )

    def _start(self) -> None:
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as kept:
            here, there = socket.socketpair()
            kept.callback(here.close)
            channel = passed.enter_context(_above_streams(there.detach()))
            self._orders, follows = socket.socketpair()  # no pipe: see NO_SIGNAL
            kept.callback(self._orders.close)
            orders = passed.enter_context(_above_streams(follows.detach()))
            self._reported, reports = os.pipe()
            kept.callback(_close_quietly, self._reported)
            reports = passed.enter_context(_above_streams(reports))
            self._channel = Channel(here)
            self._guard = _start_guard(self._mark, channel, orders, reports)
            kept.pop_all()

    @property
    def alive(self) -> bool:
        """Whether it was not ended, as far as is known."""
        return not self._over

    @property
    def guard_pid(self) -> int:
        """Process id of the guard."""
        return self._guard.pid

    def wait_ready(self, until: float | None = None) -> None:
        """Wait until it listens.

        Args:
            until: When it is ended if it does not; None for two minutes from now.

        Raises:
            LostError: If it ends before, or does not get ready.
        """
        if not self._ready:
            latest = time.monotonic() + _START_SECONDS
            try:
                message = self._receive(latest if until is None else min(until, latest))
            except LostError as error:
                if error.kind == "time" and until is not None and until < latest:
                    raise
                raise LostError("start", f"a worker process does not start: {error.reason}", error.signal) from error
            self._ready = isinstance(message, Ready)

    def ask(self, message: Any, seconds: float | None = None, turn: Callable[[], None] | None = None) -> Answer:
        """Send a request and wait for its answer; with anything but an answer, everything is ended.

        Args:
            message: The request.
            seconds: Time for it.
            turn: Returns when the worker may take its turn; the time until then does not count.

        Raises:
            LostError: If the worker ends or is ended, and why.
        """
        until = None if seconds is None else time.monotonic() + seconds
        self.wait_ready(until)
        self.stage = "taking the request"
        try:
            self._channel.send(message)
        except ClosedError:
            raise self._lost(time.monotonic() + _END_SECONDS) from None
        except BaseException:
            self.end()
            raise
        while True:
            answer = self._receive(until)
            if isinstance(answer, Stage):
                self.stage = answer.name
            elif isinstance(answer, Turn):
                until = self._give_turn(until, turn)
            elif isinstance(answer, Answer):
                return answer

    def _give_turn(self, until: float | None, turn: Callable[[], None] | None) -> float | None:
        """Let the worker go on when it may; returns by when it has to be done then."""
        started = time.monotonic()
        try:
            if turn is not None:
                turn()
            self._channel.send(Go())
        except ClosedError:
            raise self._lost(time.monotonic() + _END_SECONDS) from None
        except BaseException:
            self.end()
            raise
        return None if until is None else until + time.monotonic() - started

    def begin(self, log: Path | None, memory_bytes: int | None) -> None:
        """Say where output goes from now on, and which limit holds.

        Raises:
            LostError: If the guard is gone.
        """
        self.wait_ready()
        self._order(do="begin", log=None if log is None else str(log), limit=memory_bytes, console=console_output())

    def finish(self) -> int:
        """Say that an attempt is over: its log is complete when this returns.

        Returns:
            How many processes the attempt has left behind.

        Raises:
            LostError: If the guard is gone.
        """
        left: int = self._order(do="finish")["left"]
        return left

    def look(self) -> None:
        """Notice, before a request, that the worker was lost since the last one.

        Raises:
            LostError: If it was.
        """
        if self._ready and wait([self._channel.fileno(), self._reported], 0):
            raise self._lost(time.monotonic() + _END_SECONDS)

    def interrupt(self) -> None:
        """Have everything ended, from another thread than the one that waits for an answer, which will notice."""
        if not self._over:
            with contextlib.suppress(OSError):
                self._orders.sendall(json.dumps({"do": "end"}).encode() + b"\n", NO_SIGNAL)

    def end(self) -> None:
        """End the worker and everything that it started; calling it twice is allowed."""
        self._over = True
        _OPEN.discard(self)
        self._finalizer()

    def forget(self) -> None:
        """In a process that was forked from the owner: hold nothing open, so that the owner's end is noticed."""
        self._over = True
        self._finalizer.detach()
        self._channel.close()
        self._orders.close()
        _close_quietly(self._reported)

    def _order(self, **order: Any) -> dict[str, Any]:
        try:
            self._orders.sendall(json.dumps(order).encode() + b"\n", NO_SIGNAL)
        except OSError:
            raise self._lost(time.monotonic() + _END_SECONDS) from None
        until = time.monotonic() + 10 * _END_SECONDS
        while True:
            report = self._report(until)
            if report is None:
                raise self._gone("its guard does not answer")
            if report["what"] == order["do"]:
                return report
            raise self._ended_by(report)

    def _receive(self, until: float | None) -> Any:
        """Return the next message of the worker.

        Raises:
            LostError: If there is none in time, or the worker or its guard is gone.
        """
        try:
            while True:
                if not self._channel.holds_message():
                    ready = wait([self._channel.fileno(), self._reported], _left(until))
                    if not ready and _left(until) != 0:
                        continue
                    if not ready:
                        self.end()
                        raise LostError("time", f"it was at this stage: {self.stage}")
                    if self._channel.fileno() not in ready:
                        raise self._lost(time.monotonic() + _END_SECONDS)
                message = self._channel.receive_if_whole()
                if message is not None:
                    return message
        except ClosedError as error:
            raise self._lost(time.monotonic() + _END_SECONDS, str(error)) from None
        except LostError:
            raise
        except BaseException:  # Ctrl-C among others
            self.end()
            raise

    def _lost(self, until: float, how: str = "it closed the connection") -> LostError:
        """End everything, and return why the worker is gone."""
        report = self._report(until)
        if report is None:
            return self._gone(how)
        return self._ended_by(report)

    def _gone(self, how: str) -> LostError:
        self.end()
        if self._guard.returncode:
            how = f"its guard was ended ({_state_text(self._guard.returncode)})"
        return LostError("crash", how)

    def _ended_by(self, report: dict[str, Any]) -> LostError:
        self.end()
        if report["what"] == "memory":
            return LostError("memory", report["reason"])
        last = [line.strip() for line in report.get("last", "").splitlines() if line.strip()][-_LAST_LINES:]
        printed = f"; its last output: {' | '.join(last)}" if last else ""
        state = int(report.get("code", 0))
        return LostError("crash", f"the worker process {_state_text(state)}{printed}", report.get("signal"))

    def _report(self, until: float) -> dict[str, Any] | None:
        """Return the next report of the guard, None if there is none in time."""
        while b"\n" not in self._reports:
            try:
                if not wait([self._reported], _left(until)):
                    return None
                data = os.read(self._reported, 1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self._reports += data
        line, self._reports = self._reports.split(b"\n", 1)
        report: dict[str, Any] = json.loads(line)
        return report


def _start_guard(mark: str, channel: int, orders: int, reports: int) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve().parent
    settings = {
        "packages": {
            "aitune.torch": str(here.parent),
            "aitune.torch.measure": str(here.parent / "measure"),
            "aitune.torch.worker": str(here),
        },
        "command": [*_interpreter(), "-c", _CHILD, str(channel)],
        "channel": channel,
        "orders": orders,
        "reports": reports,
        "margin": _margin(),
    }
    return subprocess.Popen(
        # Each entry of the path is an argument of its own, as there is a limit to the length of one.
        [*_interpreter(), "-c", START, json.dumps(settings), *_path()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if _is_open(2) else subprocess.DEVNULL,
        pass_fds=(channel, orders, reports),
        cwd=None if _absolute("") is not None else "/",  # one that was removed is none in which MKL can be loaded
        env={**_environment(), MARK: mark},
        start_new_session=True,
    )


@contextlib.contextmanager
def _above_streams(descriptor: int) -> Iterator[int]:
    """Yield a copy of a file descriptor that is none of a new process's standard streams; the original is closed.

    Where a daemon closed its own streams, the next files that it opens take their numbers.
    """
    import fcntl  # not there on Windows, where this module is imported as well

    try:
        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
    try:
        yield copy
    finally:
        os.close(copy)


def _path() -> list[str]:
    return nothing_hidden([entry for entry in map(_absolute, sys.path) if entry is not None])


def _absolute(entry: str) -> str | None:
    try:
        return entry or str(Path.cwd())
    except OSError:  # the working folder was removed
        return None


def _interpreter() -> list[str]:
    given = [f"-{letter * getattr(sys.flags, name)}" for name, letter in _FLAGS.items() if getattr(sys.flags, name)]
    # Warnings of libraries are errors in some programs; in a worker they are output.
    return [sys.executable, *given, "-X", f"utf8={sys.flags.utf8_mode}", "-W", "ignore"]


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith("AITUNE_JIT_")
    }


def _margin() -> int:
    """Return how many bytes of the machine's memory a worker may not take: a twentieth, 0.3 to 4 GB."""
    free = left_in_control_group()
    total = psutil.virtual_memory().total
    return int(min(4e9, max(3e8, (total if free is None else min(free, total)) / 20)))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _left(until: float | None) -> float | None:
    """Return how long to wait at a time: the system's own clocks end after some weeks."""
    return None if until is None else min(max(0.0, until - time.monotonic()), _LONGEST_WAIT)


def _state_text(state: int) -> str:
    return f"was ended by {signal_name(-state)}" if state < 0 else f"exited with status {state}"


def _end(
    guard: subprocess.Popen[bytes], channel: Channel, orders: socket.socket, reported: int, mark: str, owner: int
) -> None:
    if os.getpid() != owner:
        return
    channel.close()
    orders.close()  # the guard takes the end of its orders as one
    _close_quietly(reported)
    try:
        guard.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    if guard.returncode != 0:  # killed by someone: what it looked after has to be found
        end_marked(mark, _END_SECONDS)


def _close_quietly(number: int) -> None:
    with contextlib.suppress(OSError):
        os.close(number)


_OPEN: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
"""Workers of this process, for its forks to let go of."""


@functools.cache
def _forget_in_forks() -> None:
    os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for worker in list(_OPEN):
        worker.forget()
    _OPEN.clear()
