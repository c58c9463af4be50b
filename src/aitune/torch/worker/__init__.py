"""Builds, kept apart from the process that asks for them, behind one executor interface."""

from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.attempt import Attempt, Outcome
from aitune.torch.worker.executor import Executor, Workplace
from aitune.torch.worker.folders import BuildFolders, remove_files
from aitune.torch.worker.in_process import Built, build_here, load_here
from aitune.torch.worker.isolation import open_executor
from aitune.torch.worker.limits import Limits
from aitune.torch.worker.process_executor import ProcessExecutor

__all__ = [
    "Assignment",
    "Attempt",
    "BuildFolders",
    "Built",
    "Executor",
    "Limits",
    "Outcome",
    "ProcessExecutor",
    "Workplace",
    "build_here",
    "load_here",
    "open_executor",
    "remove_files",
]
