"""What is known of a candidate without building it."""

from __future__ import annotations

from typing import Any

import torch

from aitune.exceptions import BackendError, BackendUnsupportedError
from aitune.torch.backend import Backend
from aitune.torch.backend.registry import missing_requirement
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["untaken", "unusable", "unusable_verdict"]


def unusable(backend: Backend[Any], device: torch.device) -> str | None:
    """Return why a backend cannot be used on a device of this machine, None if it can be tried."""
    if device.type not in backend.devices:
        return f"needs {' or '.join(backend.devices)}, the module is on {device.type}"
    missing = missing_requirement(backend)
    return missing.reason if missing is not None else None


def untaken(backend: Backend[Any], graph: GraphSpec) -> str | None:
    """Return which argument a backend's engines cannot take, None if they take all."""
    varying = graph.inputs.varying
    if not varying or backend.takes_varying({leaf.kind for leaf in varying}):
        return None
    return f"cannot take an argument that is no tensor and changes from call to call ({', '.join(map(str, varying))})"


def unusable_verdict(backend: Backend[Any], job: Job) -> BackendError | None:
    """Return the error that building would end in, None if it can be tried."""
    reason = backend.unsuitable(job)
    reason = reason or untaken(backend, job.graph)
    if reason is not None:
        return BackendUnsupportedError(backend.name, reason)
    return missing_requirement(backend)
