"""torch.export of a graph: for its whole range or not at all, and without leaving traces."""

from dataclasses import replace

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


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(6, 4))

    def forward(self, x):
        return x + self.table[: x.shape[0]]


class Halved(nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0] // 2, 8) + 1


class Alike(nn.Module):
    def forward(self, x, y):
        return x + y if x.shape == y.shape else x


class Needed(nn.Module):
    def forward(self, x):
        return x.repeat(4 // len(range(x.shape[0])), 1)


@pytest.mark.parametrize(
    ("module", "sizes", "narrowed"),
    [
        (Branch(), (1, 8), (4, 8)),  # the branch of the largest size, which is the one to aim at
        (Bounded(), (1, 4, 6), None),
        (Halved(), (2, 6), (6, 6)),
        (Needed(), (1, 4), (4, 4)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_holds_for_a_part_of_the_range_is_exported_for_that_part(job_of, module, sizes, narrowed):
    job = job_of(module, *calls(*sizes))
    exported = export_program(job, "B")
    (low, high) = narrowed or (min(sizes), max(sizes))

    assert dict(exported.narrowing.ranges) == ({"batch0": narrowed} if narrowed else {})
    assert bool(exported.narrowing.notes) == bool(narrowed)
    for size in range(low, high + 1):
        x = torch.randn(size, 4)
        assert torch.allclose(exported.program.module()(x)[0], module(x), atol=1e-6)


def test_a_narrowing_says_which_axis_and_why(job_of):
    exported = export_program(job_of(Branch(), *calls(1, 8)), "B")

    (note,) = exported.narrowing.notes
    assert note.startswith("serves batch0 (axis 0 of x, 1 to 8) from 4 to 8 only: torch.export suggests")


def test_a_declared_range_beyond_what_the_module_holds_for_is_narrowed(job_of):
    job = job_of(Bounded(), *calls(1, 4))
    wide = replace(job, graph=job.graph.with_batch_up_to(100).aimed_at(5))

    assert dict(export_program(wide, "B").narrowing.ranges) == {"batch0": (1, 6)}


def test_the_size_to_aim_at_decides_which_part_is_kept(job_of):
    job = job_of(Branch(), *calls(1, 8))
    low = replace(job, graph=job.graph.aimed_at(2))

    assert dict(export_program(low, "B").narrowing.ranges) == {"batch0": (1, 3)}


def test_axes_that_depend_on_each_other_become_static(job_of):
    def call(x, y):
        return (torch.randn(x, 4), torch.randn(y, 4)), {}

    exported = export_program(job_of(Alike(), call(2, 2), call(6, 6), call(6, 3)), "B")

    assert exported.narrowing.ranges
    x, y = (torch.randn(*(int(n) for n in spec.shape)) for spec in _static(exported, job_of, call))
    assert torch.allclose(exported.program.module()(x, y)[0], Alike()(x, y))


def _static(exported, job_of, call):
    graph = job_of(Alike(), call(2, 2), call(6, 6), call(6, 3)).graph.narrowed(dict(exported.narrowing.ranges))
    return graph.inputs.tensors


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
