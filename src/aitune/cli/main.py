"""The group of verbs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from aitune import __version__
from aitune.cli.program import Program
from aitune.cli.run import run

__all__ = ["main"]


@click.group()
@click.version_option(__version__, prog_name="aitune")
def _verbs() -> None:
    """Make PyTorch inference faster without making it wrong."""


_verbs.add_command(run)


def main(arguments: Sequence[str]) -> int:
    """Carry out a command line.

    A program that ``run`` starts runs after click is done, so that its exceptions, Ctrl-C and exit codes are its own.

    Returns:
        The exit code.
    """
    try:
        found = _verbs.main(list(arguments), prog_name="aitune", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        sys.stderr.write("Aborted!\n")
        return 1
    if isinstance(found, Program):
        return _outcome(found)
    return found if isinstance(found, int) else 0


def _outcome(program: Program) -> int:
    """Run a program; an exception that it does not catch is shown with the program's own frames, as by Python."""
    try:
        program.start()
    except Exception as error:  # noqa: BLE001 - the program's own
        traceback = error.__traceback__
        while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
            traceback = traceback.tb_next
        error.__traceback__ = traceback or error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _is_ours(file: str) -> bool:
    return file.startswith(str(Path(__file__).parent)) or file == "<frozen runpy>"
