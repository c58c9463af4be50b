"""A real engine is found again by another process, and answers there as it did here."""

from __future__ import annotations

import pytest
import torch

from aitune.testing.fresh_process import in_fresh_process
from aitune.testing.modules import Mlp
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend, TorchInductorAotBackend
from aitune.torch.backend.availability import missing_requirement
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.store import Store, describe_subject, entry_key
from aitune.torch.trial import Trial, Verdict
from aitune.torch.worker import build_here

CPU = torch.device("cpu")


def job_of(graph_of, folder):
    torch.manual_seed(4)
    module = Mlp().eval()
    samples = (Sample((torch.randn(2, 8),), {}, 2),)
    return Job("net", module, graph_of(module), samples, CPU, folder / "files", folder / "log")


def found(graph_of, backend, root, folder):
    """What another process does: the same module, its key, a look into the store, the engine."""
    job = job_of(graph_of, folder)
    key = entry_key(describe_subject(job.module, job.graph, CPU), backend)
    entry = Store(root).lookup(key)
    if entry is None:
        return None
    engine = backend.load(job, entry.bring_to(job.folder))
    x = torch.linspace(-1, 1, 24).view(3, 8)
    with torch.no_grad():
        return (engine.run(x) - job.module(x)).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", [ONNXRuntimeBackend(), OpenVINOBackend(), TorchInductorAotBackend()], ids=lambda one: one.name
)
def test_an_engine_is_found_by_another_process(backend, graph_of, root, tmp_path):
    if missing_requirement(backend) is not None:
        pytest.skip(f"{backend.name} is not installed")
    assert in_fresh_process(found, graph_of, backend, root, tmp_path / "before") is None
    job = job_of(graph_of, tmp_path)
    built = build_here(backend, job)
    built.engine.save(tmp_path / "saved")
    key = entry_key(describe_subject(job.module, job.graph, CPU), backend)
    Store(root).publish(key, Trial(backend=backend.describe(), verdict=Verdict.accepted), tmp_path / "saved")
    assert in_fresh_process(found, graph_of, backend, root, tmp_path / "after") < 1e-5
