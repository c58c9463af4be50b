"""Builds, kept apart from the process that asks for them, behind one executor interface."""

from aitune.torch.worker.executor import Built, Executor, InProcessExecutor
from aitune.torch.worker.folders import BuildFolders, remove_files

__all__ = ["BuildFolders", "Built", "Executor", "InProcessExecutor", "remove_files"]
