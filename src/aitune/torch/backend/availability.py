"""Whether a backend can be tried here, found without importing a vendor's library."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from aitune.exceptions import BackendNotInstalledError, BackendUnsupportedError
from aitune.torch.backend.base import Backend
from aitune.torch.graph.job import Job

__all__ = ["is_installed", "missing_requirement", "require"]


def missing_requirement(backend: Backend[Any]) -> BackendNotInstalledError | None:
    """Return the error that names the first library that is not installed, None if all are."""
    for requirement in backend.requirements:
        if not any(is_installed(name) for name in (requirement.library, *requirement.alternatives)):
            return BackendNotInstalledError(backend.name, requirement.library, requirement.extra)
    return None


def require(backend: Backend[Any], job: Job) -> None:
    """Refuse a job that the backend cannot serve, as the first step of a build.

    Raises:
        BackendUnsupportedError: If the job is unsuitable.
        BackendNotInstalledError: If a library is missing.
    """
    reason = backend.unsuitable(job)
    if reason is not None:
        raise BackendUnsupportedError(backend.name, reason)
    missing = missing_requirement(backend)
    if missing is not None:
        raise missing


def is_installed(library: str) -> bool:
    """Whether a library can be found; nothing is imported."""
    if library in sys.modules:
        return sys.modules[library] is not None
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):  # a parent package is missing, or the module has no spec
        return False
