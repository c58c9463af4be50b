"""Running a function in another Python interpreter: what is true in any process, and what must not end this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

from aitune.torch.worker.module_files import ModuleFiles, files_by_name

__all__ = ["FreshProcessError", "in_fresh_process"]

_CHILD = "from aitune.testing.fresh_process import child; child()"


class FreshProcessError(AssertionError):
    """The other interpreter did not come back with an answer."""


def in_fresh_process(
    function: Callable[..., Any],
    *arguments: Any,
    without: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 240.0,
) -> Any:
    """Call a function in a new interpreter, and return what it returns.

    Function and arguments travel by cloudpickle; modules that only this process can import by their name, such as test
    files, are made known there. What the function prints is dropped unless the process fails.

    Args:
        function: What to call.
        arguments: Its arguments.
        without: Import names of libraries that are not to be found there.
        environment: Variables to set in addition to those of this process.
        timeout: Seconds.

    Raises:
        FreshProcessError: If the process crashes, exits, or takes too long; the message says how.
        Exception: What the function raises.
    """
    payload = cloudpickle.dumps((function, arguments))
    with tempfile.TemporaryDirectory(prefix="aitune-testing-") as folder:
        question, answer = Path(folder, "question"), Path(folder, "answer")
        question.write_bytes(pickle.dumps((sys.path, files_by_name(), tuple(without), payload)))
        command = [sys.executable, "-c", _CHILD, str(question), str(answer)]
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **paths, **(environment or {})},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FreshProcessError(f"the other process took more than {timeout:g} s") from error
        if done.returncode or not answer.exists():
            how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited ({done.returncode})"
            raise FreshProcessError(f"the other process {how}:\n{(done.stdout + done.stderr)[-3000:]}")
        value, raised = pickle.loads(answer.read_bytes())
    if raised is not None:
        raise raised
    return value


def child() -> None:
    """Be the other interpreter; the command line names the files of the question and of the answer."""
    question, answer = (Path(name) for name in sys.argv[1:3])
    sys.path[:], files, without, payload = pickle.loads(question.read_bytes())
    sys.meta_path.append(ModuleFiles(files))
    for name in without:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it is then an ImportError
    value, raised = None, None
    try:
        function, arguments = pickle.loads(payload)
        value = function(*arguments)
    except Exception as error:  # noqa: BLE001 - it is raised again on the other side
        raised = error
    try:
        data = cloudpickle.dumps((value, raised))
    except Exception as unpicklable:  # noqa: BLE001 - vendors' exceptions often do not pickle
        told = raised or unpicklable
        data = pickle.dumps((None, RuntimeError(f"{type(told).__name__}: {told}")))
    part = answer.with_suffix(".part")
    part.write_bytes(data)
    part.replace(answer)
    sys.stdout.flush()
