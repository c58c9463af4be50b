"""Running a function in another Python interpreter: what is true in any process, and what must not end this one."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

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
        question.write_bytes(pickle.dumps((sys.path, _files_by_name(), tuple(without), payload)))
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
    sys.meta_path.append(_FileFinder(files))
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


class _FileFinder(MetaPathFinder):
    """Finds modules by a list of files.

    Args:
        files: File by the module's full name.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the spec of a file that is listed, or of an empty package above one."""
        if fullname in self._files:
            return importlib.util.spec_from_file_location(fullname, self._files[fullname])
        if any(name.startswith(f"{fullname}.") for name in self._files):
            return ModuleSpec(fullname, None, is_package=True)
        return None


def _files_by_name() -> dict[str, str]:
    """Return the file of every module that was not found by its name, such as those that pytest imports."""
    specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
    files = {name: spec.origin for name, spec in specs.items() if spec is not None and spec.has_location}
    return {name: file for name, file in files.items() if name != "__main__" and file and not _importable(name)}


def _importable(name: str) -> bool:
    """Whether importing ``name`` would find a file, whatever is imported already."""
    known = ""
    path: Sequence[str] | None = None
    for part in name.split("."):
        known = f"{known}.{part}" if known else part
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        spec = next((found for finder in finders if (found := finder.find_spec(known, path)) is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True
