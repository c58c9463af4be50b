"""A build in this process leaves the module as it was, or is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from aitune.testing import Case, FunctionBackend
from aitune.torch.check import state
from aitune.torch.worker.in_process import build_here


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x):
        return self.layer(x) + self.offset


def inputs(batch, generator):
    return (torch.randn(batch, 8, generator=generator),), {}


@pytest.fixture
def job(tmp_path):
    return Case("net", Net, inputs).job(tmp_path / "job", "cpu")


def write_weights(module):
    module.layer.weight.data.add_(1)


def write_a_buffer(module):
    module.offset.add_(1)


def replace_a_parameter(module):
    module.layer.weight = torch.nn.Parameter(torch.ones(4, 8))


def add_a_hook(module):
    module.register_forward_hook(lambda *_: None)


def train(module):
    module.train()


def set_an_attribute(module):
    module.layer.tuned = True


def clear_requires_grad(module):
    module.requires_grad_(False)


CHANGES = [
    write_weights,
    write_a_buffer,
    replace_a_parameter,
    add_a_hook,
    train,
    set_an_attribute,
    clear_requires_grad,
]


def holdings(module):
    return {
        "state": {name: tensor.tolist() for name, tensor in module.state_dict().items()},
        "objects": [id(tensor) for tensor in module.parameters()],
        "flags": [(part.training, dict(part._forward_hooks), sorted(vars(part))) for part in module.modules()],
        "grad": [tensor.requires_grad for tensor in module.parameters()],
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_build_leaves_the_module_as_it_was(job, change, fails):
    before = copy.deepcopy(holdings(job.module))

    def make(job):
        change(job.module)
        assert holdings(job.module) != before
        if fails:
            raise RuntimeError("no luck")
        return job.forward

    built = build_here(FunctionBackend(make), job)
    assert (built.engine is None) is fails
    assert holdings(job.module) == before


def test_a_build_that_changes_what_is_too_large_to_copy_is_refused(job, monkeypatch):
    monkeypatch.setattr(state, "_MOST_COPIED", 0)
    backend = FunctionBackend(lambda job: write_weights(job.module) or job.forward)
    built = build_here(backend, job)
    assert built.engine is None
    assert "changed the module" in str(built.error)
    assert "layer.weight" in str(built.error)
    assert backend.open_engines == 0
