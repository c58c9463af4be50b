"""torch.export of a graph: for its whole range or not at all, and without leaving traces."""

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.export import program
from aitune.torch.worker.quiet import process_state_kept


def export_program(job, backend):
    """Export as the executor does: what torch.export says goes into the log."""
    with process_state_kept(job.log):
        return program.export_program(job, backend)


def calls(*sizes, width=4):
    return [((torch.randn(size, width),), {}) for size in sizes]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen = []
        self.cache = {"a": 1}

    def forward(self, x):
        self.last = self.linear(x)
        self.seen.append(self.last)
        self.cache["b"] = self.last
        return self.last + 1


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 3 else x + 1


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, 4) + 1


class Values(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class WritesInput(nn.Module):
    def forward(self, x):
        x.view(-1).add_(1)
        return x * 2


class WritesBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls


class InPlace(nn.Module):
    def forward(self, x):
        y = x + 1
        y.mul_(2)
        y[0] = 0
        return y


def test_the_program_holds_for_every_size(job_of):
    job = job_of(nn.Linear(4, 3).eval(), *calls(1, 8))
    exported = export_program(job, "B")
    run = exported.program.module()

    assert exported.input_names == tuple(exported.program.graph_signature.user_inputs)
    for size in (1, 2, 7, 8):
        x = torch.randn(size, 4)
        assert torch.allclose(run(x)[0], job.module(x), atol=1e-6)
    assert not any("grad" in str(node.target) for node in exported.program.graph.nodes)


def test_the_module_is_as_before(job_of):
    module = Net()
    job = job_of(module, *calls(1, 4))
    hook = module.linear.register_forward_hook(lambda *_: None)
    before = {name: dict(child.__dict__) for name, child in module.named_modules()}
    last, seen = module.last, list(module.seen)
    export_program(job, "B")

    assert module.last is last
    assert all(one is two for one, two in zip(module.seen, seen, strict=True))
    assert module.cache.keys() == {"a", "b"}
    assert module.training
    assert before == {name: child.__dict__ for name, child in module.named_modules()}
    assert len(module.linear._forward_hooks) == 1
    hook.remove()


@pytest.mark.parametrize("module", [Branch(), Fixed()], ids=lambda m: type(m).__name__)
def test_an_axis_that_cannot_vary_is_named(job_of, module):
    sizes = (1, 8) if isinstance(module, Branch) else (2, 2)
    job = job_of(module, *calls(*sizes))
    if isinstance(module, Fixed):
        job = job_of(nn.Identity(), *calls(1, 8))
        object.__setattr__(job, "module", module)
        object.__setattr__(job, "samples", tuple(s for s in job.samples if len(s.args[0]) == 1))
    with pytest.raises(BackendUnsupportedError, match=r"B: batch0 \(axis 0 of x|input, 1 to 8\) cannot vary"):
        export_program(job, "B")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Values(), "torch.export cannot capture the module"),
        (WritesInput(), "changes its inputs in place"),
        (WritesBuffer(), "changes its state at each call: calls"),
        (nn.BatchNorm1d(4), "changes its state at each call: .*running_mean"),
        (nn.Identity(), "computes nothing"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_what_an_engine_could_not_do_is_refused(job_of, module, reason):
    job = job_of(module, *calls(2, 8))
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(BackendUnsupportedError, match=reason):
        export_program(job, "B")

    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())


def test_writing_to_ones_own_tensors_is_allowed(job_of):
    exported = export_program(job_of(InPlace(), *calls(1, 8)), "B")
    x = torch.randn(3, 4)

    assert torch.equal(exported.program.module()(x)[0], InPlace()(x))


def test_no_memory_is_not_a_verdict_about_the_module(job_of):
    class Hungry(nn.Module):
        armed = False

        def forward(self, x):
            if Hungry.armed:
                raise MemoryError("no room")
            return x + 1

    job = job_of(Hungry(), *calls(1, 8))
    Hungry.armed = True
    with pytest.raises(MemoryError):
        export_program(job, "B")
