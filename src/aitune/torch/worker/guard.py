"""The guard: a light process between this one and a worker, that ends the worker and everything that it started.

It starts the worker, writes its output to the log of the attempt in hand, watches memory, and kills the whole tree of
processes when it is told to, when memory runs short, or when the process that asked for it is gone, however that ended:
its end of a pipe closes then. It is the subreaper of everything below it (Linux), so that processes that forked twice
or have a session of their own are found.

Imports the standard library and psutil alone: it must be there before the worker is, and take next to no memory. So it
is started in a way that runs no ``__init__`` of aitune; see ``START``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from aitune.torch.measure.control_group import left_in_control_group
from aitune.torch.worker.build_log import BuildLog
from aitune.torch.worker.process_tree import MARK, descendants, end_marked, end_tree, exact_bytes, living, private_bytes

__all__ = ["START", "main"]

START = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json, types
settings = json.loads(sys.argv[1])
sys.path[:] = sys.argv[2:]
for name, folder in settings["packages"].items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [folder]
from aitune.torch.worker.guard import main
main(settings)
"""
"""Source of the command that starts a guard: packages are stand-ins, so that only the guard's own files are run."""

_IS_LINUX = sys.platform.startswith("linux")
_TICK = 0.05
_IDLE_TICK = 0.25
_CHUNK = 1 << 16
_LAST = 1 << 14
_END_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FROM_OUTSIDE = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main(settings: dict[str, Any]) -> None:
    """Be the guard of one worker.

    Args:
        settings: ``command`` of the worker, which takes the entries of ``sys.path`` after it; file descriptors
            ``orders`` (from the parent), ``reports`` (to it) and ``channel`` (the worker's own); ``margin``, bytes of
            memory that the machine must keep.
    """
    for name in _FROM_OUTSIDE:  # a worker that signals its parent, or the terminal, must not end its guard
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a parent may have it, nothing could be collected
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    Guard(settings).run()


class Guard:
    """Runs one worker to its end. See :func:`main`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._orders = settings["orders"]
        self._reports = settings["reports"]
        self._margin = settings["margin"]
        os.set_blocking(self._orders, False)
        self._rest = b""
        self._state: int | None = None
        self._log: BuildLog | None = None
        self._busy = False
        self._console = False
        self._limit: int | None = None
        self._at_start = 0
        self._last: deque[bytes] = deque()
        self._last_size = 0
        self._output, sink = os.pipe()
        os.set_blocking(self._output, False)
        self._worker = _start([*settings["command"], *sys.path], settings["channel"], sink)
        os.close(sink)
        os.close(settings["channel"])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._orders, selectors.EVENT_READ)
        self._selector.register(self._output, selectors.EVENT_READ)

    def run(self) -> None:
        """Watch until the worker ends, is ended, or nobody asks for it any more."""
        while True:
            self._selector.select(_TICK if self._busy else _IDLE_TICK)
            # Orders first: output that was printed after an order was given must not be read before it is.
            if not self._take_orders():
                self._finish()
                return
            self._pump(rounds=16)
            self._collect()
            state = self._state
            if state is not None:
                self._finish()
                self._report(what="exit", signal=-state if state < 0 else None, code=state, last=self._tail())
                return
            short = self._short_of_memory()
            if short is not None:
                self._finish()
                self._report(what="memory", reason=short, last=self._tail())
                return

    def _take_orders(self) -> bool:
        """Follow what the parent says; False if it is gone, or wants everything ended."""
        try:
            data = os.read(self._orders, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        return all(self._follow(json.loads(line)) for line in lines)

    def _follow(self, order: dict[str, Any]) -> bool:
        if order["do"] == "end":
            return False
        self._pump()
        self._close_log()
        self._busy = order["do"] == "begin"
        if self._busy:
            self._log = BuildLog(Path(order["log"])) if order["log"] is not None else None
            self._limit, self._console = order["limit"], order["console"]
            self._at_start = exact_bytes(self._tree())
            self._last.clear()
            self._last_size = 0
        else:
            self._limit, self._console = None, False
        self._collect()
        self._report(what=order["do"], left=living(self._tree()) - 1)
        return True

    def _tree(self) -> list[int]:
        return descendants(os.getpid())

    def _pump(self, rounds: int | None = None) -> None:
        """Pass on what the worker has printed so far, or a part of it."""
        while rounds is None or rounds > 0:
            rounds = None if rounds is None else rounds - 1
            try:
                data = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._drop_output()
                return
            if self._log is not None:
                self._log.write(data)
            if self._console:
                with contextlib.suppress(OSError):
                    os.write(2, data)
            self._last.append(data[-_LAST:])
            self._last_size += len(self._last[-1])
            while self._last_size - len(self._last[0]) >= _LAST:
                self._last_size -= len(self._last.popleft())

    def _drop_output(self) -> None:
        """Stop waiting for output that cannot come, as the worker closed its end."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._output)

    def _tail(self) -> str:
        return b"".join(self._last)[-_LAST:].decode(errors="replace")

    def _collect(self) -> None:
        """Collect what has ended, and note the worker's state (negative: a signal) once it has."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self._worker.pid:
                    self._state = self._worker.returncode = os.waitstatus_to_exitcode(status)

    def _short_of_memory(self) -> str | None:
        """Return why the worker must end, None while there is memory."""
        tree = self._tree()
        used = private_bytes(tree)
        if self._limit is not None and used > self._limit:
            used = exact_bytes(tree)
            if used > self._limit:
                return f"it took {_size(used)}, the limit is {_size(self._limit)}"
        if used > self._at_start + self._margin // 2:
            free, group = psutil.virtual_memory().available, left_in_control_group()
            if min(free, free if group is None else group) < self._margin:
                return f"it took {_size(used)}, and less than {_size(self._margin)} is left of the machine's memory"
        return None

    def _finish(self) -> None:
        """End everything below."""
        end_tree(os.getpid(), _END_SECONDS)
        if not _IS_LINUX:  # nobody adopts there what has lost its parent
            end_marked(os.environ.get(MARK, ""), _END_SECONDS, spare=os.getpid())
        self._worker.returncode = self._worker.returncode or 0  # collected; subprocess would warn
        self._pump()
        self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _report(self, **report: Any) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(self._reports, json.dumps(report).encode() + b"\n")


def _start(command: list[str], channel: int, sink: int) -> subprocess.Popen[bytes]:
    import resource  # not there on Windows, where this module is imported as well

    guard = os.getpid()

    def in_worker() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        for name in _FROM_OUTSIDE:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # rather this one than anything else, where the kernel has to choose
            Path("/proc/self/oom_score_adj").write_text("1000")

    # The guard has one thread, so running Python between fork and exec is safe here.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
        pass_fds=(channel,),
        start_new_session=True,
        preexec_fn=in_worker,  # noqa: PLW1509
    )


def _load_prctl() -> Callable[[int, int], None]:
    if not _IS_LINUX:
        return lambda *_: None
    library = ctypes.CDLL(None, use_errno=True)
    return lambda option, value: library.prctl(option, ctypes.c_ulong(int(value)), 0, 0, 0)


_prctl = _load_prctl()


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
