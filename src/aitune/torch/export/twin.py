"""A twin of a module to export: exporters swap its parameters for stand-ins, while other threads may be calling it."""

from __future__ import annotations

import copy
from dataclasses import replace

from aitune.torch.graph.job import Job

__all__ = ["on_a_twin"]


def on_a_twin(job: Job) -> Job:
    """Return the job with a copy of its module that shares every parameter and buffer, so that it costs no memory.

    Where the module cannot be copied, or a forward was set on an instance (which a copy would share, with whatever it
    is bound to), the job is returned as it is.
    """
    if any("forward" in part.__dict__ for part in job.module.modules()):
        return job
    shared = {id(tensor): tensor for tensor in (*job.module.parameters(), *job.module.buffers())}
    try:
        return replace(job, module=copy.deepcopy(job.module, shared))
    except Exception:  # noqa: BLE001 - what a module holds may refuse to be copied in any way
        return job
