"""The processes below one process: which they are, what memory they take, and their end.

Imports neither torch nor anything of aitune, as the guard of a worker does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["MARK", "descendants", "end_marked", "end_tree", "exact_bytes", "living", "private_bytes", "signal_name"]

MARK = "AITUNE_WORKER_MARK"
"""Environment variable that tells the processes of one worker from all others, wherever they hide."""


def descendants(root: int) -> list[int]:
    """Return the processes below ``root``, without it; a process that appears or goes meanwhile may be missed."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def living(pids: Iterable[int]) -> int:
    """Return how many of some processes have not ended; those that wait to be collected have."""
    count = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            count += psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return count


def private_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of processes without what is mapped from files or shared memory, each by itself.

    Quick, and too large where processes that were forked share pages: see :func:`exact_bytes`.
    """
    return sum(_private(pid) for pid in pids)


def exact_bytes(pids: Iterable[int]) -> int:
    """Return the same with pages that several of the processes share counted once, and shared memory included.

    Takes milliseconds a gigabyte on Linux; elsewhere it is :func:`private_bytes`.
    """
    return sum(_proportional(pid) for pid in pids)


def end_tree(root: int, seconds: float) -> bool:
    """Kill every process below ``root`` again and again until none is left, and collect what has become its children.

    For the process ``root`` itself: no other may collect its children.

    Args:
        root: This process.
        seconds: When to give up, as a process that waits for a device cannot be killed.

    Returns:
        Whether none is left.
    """
    until = time.monotonic() + seconds
    while True:
        _collect()
        with contextlib.suppress(psutil.Error):
            living = psutil.Process(root).children(recursive=True)
            for process in living:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not living:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.005)


def end_marked(mark: str, seconds: float, spare: int | None = None) -> bool:
    """Kill every process of this user that carries a mark in its environment; see :func:`end_tree`.

    For the case that the guard was killed, and where there are no subreapers: a process whose parents are gone is found
    by its mark alone.

    Args:
        mark: The value of ``MARK`` in its environment.
        seconds: When to give up.
        spare: Process id of the one to leave alone.
    """
    until = time.monotonic() + seconds
    while True:
        living = [process for process in psutil.process_iter() if process.pid != spare and _carries(process, mark)]
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not living:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.01)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):
        return False


def _collect() -> None:
    """Collect the exit states of children; those of a subreaper include its orphaned descendants."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():  # not Linux, or built without
            with contextlib.suppress(psutil.Error):
                return [process.pid for process in psutil.Process(pid).children()]
    except OSError:
        pass
    return found


def _private(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        return max(0, int(memory.rss - getattr(memory, "shared", 0)))
    return 0


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return _private(pid)
    sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:] if ":" in line}
    if "Pss_Anon" not in sizes:
        return _private(pid)
    return 1024 * (int(sizes["Pss_Anon"]) + int(sizes.get("Pss_Shmem", 0)))


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
