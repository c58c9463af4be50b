"""What is known of a candidate without building it."""

from __future__ import annotations

from typing import Any

import torch

from aitune.exceptions import BackendError, BackendUnsupportedError
from aitune.torch.backend import Backend
from aitune.torch.backend.guarded import answering_for, described, said_of
from aitune.torch.backend.registry import missing_requirement
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["untaken", "unusable", "unusable_verdict"]


def unusable(backend: Backend[Any], device: torch.device) -> str | None:
    """Return why a backend cannot be used on a device of this machine, None if it can be tried."""
    try:
        with answering_for(described(backend), "asking it what it needs"):
            if device.type not in backend.devices:
                return f"needs {' or '.join(backend.devices)}, the module is on {device.type}"
            missing = missing_requirement(backend)
    except BackendError as error:
        return error.reason
    return missing.reason if missing is not None else None


def untaken(backend: Backend[Any], graph: GraphSpec) -> str | None:
    """Return which argument a backend's engines cannot take, None if they take all.

    Raises:
        BackendError: If the backend cannot say.
    """
    varying = graph.inputs.varying
    if not varying:
        return None
    with answering_for(described(backend), "takes_varying()"):
        if backend.takes_varying({leaf.kind for leaf in varying}):
            return None
    return f"cannot take an argument that is no tensor and changes from call to call ({', '.join(map(str, varying))})"


def unusable_verdict(backend: Backend[Any], job: Job) -> BackendError | None:
    """Return the error that building would end in, None if it can be tried.

    A backend that passes has answered every question that is asked of it later on.
    """
    try:
        name = said_of(backend)
        with answering_for(name, "unsuitable()"):
            reason = backend.unsuitable(job)
        reason = reason or untaken(backend, job.graph)
        if reason is not None:
            return BackendUnsupportedError(backend.name, str(reason))
        with answering_for(name, "asking it what it needs"):
            missing = missing_requirement(backend)
            _ = backend.name, backend.contained, backend.safe_in_process
    except BackendError as error:
        return error
    return missing
