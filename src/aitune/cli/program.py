"""A Python program that is run in this process as the interpreter itself would."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """What to run.

    Attributes:
        kind: ``script`` (a file, a folder or a zip with a ``__main__.py``), ``module`` or ``code``.
        target: Path, module name or text.
        arguments: What ``sys.argv`` holds behind its first entry.
    """

    kind: Literal["script", "module", "code"]
    target: str
    arguments: tuple[str, ...] = ()

    def start(self) -> None:
        """Turn just-in-time tuning on and run, with ``sys.argv``, ``sys.path[0]`` and ``__main__`` as it expects them.

        Raises:
            BaseException: What the program raises.
        """
        import wrapt

        from aitune import _bootstrap

        wrapt.register_post_import_hook(_bootstrap.enable_jit_tuning, "torch")
        if self.kind == "module":
            sys.argv[:] = [self.target, *self.arguments]
            _first_on_path(str(Path.cwd()))
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        elif self.kind == "code":
            sys.argv[:] = ["-c", *self.arguments]
            _first_on_path("")
            _run(compile(self.target, "<string>", "exec"), None)
        else:
            self._start_script()

    def _start_script(self) -> None:
        path = self.target
        sys.argv[:] = [path, *self.arguments]
        if not os.path.exists(path):  # noqa: PTH110 - the message names it as it was written
            click.echo(f"aitune run: can't open file {path!r}: no such file", err=True)
            sys.exit(2)
        if not os.path.isfile(path) or path.endswith((".zip", ".pyz", ".whl", ".egg")):  # noqa: PTH113 - as above
            runpy.run_path(os.path.abspath(path), run_name="__main__")  # noqa: PTH100 - as the interpreter does
            return
        _first_on_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - as the interpreter does
        with io.open_code(os.path.abspath(path)) as file:  # noqa: PTH100 - as above
            _run(compile(file.read(), path, "exec"), path)


def _run(code: types.CodeType, path: str | None) -> None:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if path is not None:
        main.__file__ = path
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        main.__dict__["__cached__"] = None
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _first_on_path(folder: str) -> None:
    if getattr(sys.flags, "safe_path", False):
        return  # python -P: nothing was put there
    sys.path[:1] = [folder]
