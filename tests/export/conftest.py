"""Jobs made of recorded calls."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from aitune.torch.graph.job import Job
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.slot import Slot, current


@pytest.fixture
def job_of(tmp_path) -> Callable[..., Job]:
    """Record calls of one graph: ``job_of(module, (args, kwargs), ...)``, the batch size being the first axis."""

    def record(module, *calls) -> Job:
        slot = Slot(module, current(module))
        recording = Recording(CallSignature.of(module.forward))
        slot.install(functools.partial(recording.call, slot))
        try:
            with torch.no_grad():
                for args, kwargs in calls:
                    first = next((value for value in args if isinstance(value, torch.Tensor)), None)
                    with batch_of(None if first is None or not first.dim() else len(first)):
                        module(*args, **kwargs)
        finally:
            slot.remove()
        (seen,) = recording.observations
        graph = seen.graph("graph0", recording.signature)
        return Job("module", module, graph, seen.samples, torch.device("cpu"), tmp_path, tmp_path / "build.log")

    return record
