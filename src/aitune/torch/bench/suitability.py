"""What is known of a candidate without building it."""

from __future__ import annotations

from typing import Any

import torch

from aitune.exceptions import BackendError, BackendUnsupportedError
from aitune.torch.backend import Backend
from aitune.torch.backend.registry import missing_requirement
from aitune.torch.graph.job import Job

__all__ = ["unusable", "unusable_verdict"]


def unusable(backend: Backend[Any], device: torch.device) -> str | None:
    """Return why a backend cannot be used on a device of this machine, None if it can be tried."""
    if device.type not in backend.devices:
        return f"needs {' or '.join(backend.devices)}, the module is on {device.type}"
    missing = missing_requirement(backend)
    return missing.reason if missing is not None else None


def unusable_verdict(backend: Backend[Any], job: Job) -> BackendError | None:
    """Return the error that building would end in, None if it can be tried."""
    reason = backend.unsuitable(job)
    if reason is not None:
        return BackendUnsupportedError(backend.name, reason)
    return missing_requirement(backend)
