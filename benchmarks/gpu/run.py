"""The parent of all rows: starts their processes, and keeps what they leave after each step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu import second_start
from benchmarks.gpu.candidates import Work
from benchmarks.gpu.suites import ALONE, command, outcome

__all__ = ["TESTS", "Run"]

TESTS = "tests"
_LONGEST_BUILD = 240.0  # seconds; then those that are built are measured without waiting for the others
_WORTH_STARTING = 30.0
_FOR_ONE = 90.0  # seconds that are kept for each part that runs alone
Row = dict[str, Any]


class Run:
    """Makes rows until time is up.

    Args:
        file: Where the rows are; written to after each step.
        seconds: Time for everything.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file
        self._end = time.time() + seconds
        self._rows: list[Row] = json.loads(file.read_text()) if file.exists() else []
        self._temporary = tempfile.TemporaryDirectory(prefix="aitune-gpu-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)

    def tests(self, suites: Sequence[str]) -> None:
        """Run parts of the tests, those side by side that may be, and keep the output of each beside the rows."""
        wanted = [suite for suite in suites if not self._has(TESTS, suite)]
        groups = [[one for one in wanted if one not in ALONE], *([one] for one in wanted if one in ALONE)]
        logs = self._file.parent / "logs"
        logs.mkdir(exist_ok=True)
        for group in groups:
            if not group or self._left() < _WORTH_STARTING:
                continue
            kept = 0 if group is not groups[0] else _FOR_ONE * (len(groups) - 1)
            started, until = time.time(), self._end - kept
            running = {one: self._start(command(one), logs / f"{_plain(one)}.log") for one in group}
            while running and time.time() < until:
                for one in [one for one, process in running.items() if process.poll() is not None]:
                    text = (logs / f"{_plain(one)}.log").read_text(errors="replace")
                    row = {"model": TESTS, "subject": one, **outcome(running.pop(one), text)}
                    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
                    self._keep([{**row, "seconds": time.time() - started, "date": date}])
                    print(f"{one}: {row['outcome']} after {time.time() - started:.0f} s", flush=True)
                time.sleep(0.2)
            self._kill(running)

    def rows_of(self, models: Sequence[str], subjects: Sequence[str]) -> None:
        """Make the rows of subjects on models at once: built together, measured one at a time."""
        works = [Work(model, one) for model in models for one in subjects]
        works = [work for work in works if not all(self._has(row.model, row.subject) for row in work.rows())]
        if not works or self._left() < _WORTH_STARTING:
            return
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        logs = self._file.parent / "logs"
        logs.mkdir(exist_ok=True)
        running = {work: self._start(_row_of(work, folder), logs / f"{work.name}.log") for work in works}
        started, builds_until = time.time(), time.time() + min(_LONGEST_BUILD, 0.7 * self._left())
        while running and self._left() > 0:
            for work in [work for work, process in running.items() if process.poll() is not None]:
                code = running.pop(work).returncode
                self._keep([_row_left(row, f"it ended with {code}", folder) for row in work.rows()])
                print(f"{work.name} after {time.time() - started:.0f} s", flush=True)
            waiting = [work for work in running if not (folder / f"{work.name}.built").exists()]
            if not waiting or time.time() > builds_until:
                (folder / "go").touch()
            time.sleep(0.1)
        self._kill(running)
        unfinished = [row for work in running for row in work.rows() if row.file(folder).exists()]
        self._keep([_row_left(row, "", folder) for row in unfinished])

    def second_starts(self, models: Sequence[str]) -> None:
        """Make the rows of the second start of a program, once all of its first starts are done."""
        wanted = [one for one in second_start.WAYS if one.model in models and not self._has(one.model, one.subject)]
        if wanted and self._left() > _WORTH_STARTING:
            store = Path(os.environ.get(second_start.STORE, self._folder))
            for row in second_start.measured(wanted, store, self._end):
                self._keep([row])
                print(
                    f"{row['model']} {row['subject']}: {row.get('more_seconds')} {row.get('failure', '')}", flush=True
                )

    def _left(self) -> float:
        return self._end - time.time()

    def _has(self, model: str, subject: str) -> bool:
        found = [row for row in self._rows if (row["model"], row["subject"]) == (model, subject)]
        return any(row.get("rc", 0) == 0 and not row.get("partial") for row in found)

    def _keep(self, rows: Sequence[Row]) -> None:
        new = {(row["model"], row["subject"]) for row in rows}
        self._rows = [row for row in self._rows if (row["model"], row["subject"]) not in new] + list(rows)
        self._file.write_text(json.dumps(self._rows, indent=1) + "\n")

    def _start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        cache = tempfile.mkdtemp(dir=self._folder)
        environment = {**os.environ, "AITUNE_CACHE_DIR": cache}
        with log.open("w") as output:
            return subprocess.Popen(
                arguments, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )

    def _kill(self, running: Mapping[Any, subprocess.Popen[bytes]]) -> None:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def _row_of(work: Work, folder: Path) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-m", "benchmarks.gpu.row", work.model, work.subject, str(folder)]


def _row_left(row: Work, ended: str, folder: Path) -> Row:
    """Return the row that a process left, or how it ended."""
    if row.file(folder).exists():
        left: Row = json.loads(row.file(folder).read_text())
        return left
    return {"model": row.model, "subject": row.subject, "trials": [], "failure": ended}


def _plain(name: str) -> str:
    return name.replace("/", "_").replace("::", ".").replace(".py", "")
