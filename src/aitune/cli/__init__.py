"""The command line: one file a verb."""

from aitune.cli.main import main

__all__ = ["main"]
