"""The reference in higher precision."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.torch.check import Effort, judge, prepare
from aitune.torch.check.precision import higher_precision, own_precision, raise_module, raised_copy, raised_sample
from aitune.torch.graph.sample import Sample

COPIES: list[weakref.ref] = []


class Watched(nn.Module):
    """Notes every copy that is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.table = torch.linspace(0, 1, 8)

    def __deepcopy__(self, memo):
        other = Watched()
        other.load_state_dict(self.state_dict())
        COPIES.append(weakref.ref(other))
        return other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table


def test_the_reference_is_exact_and_the_copy_is_gone(make_batches, make_subject) -> None:
    module = Watched()
    subject = make_subject(module, make_batches(2, 4))
    assert subject.reference.kind == "float64"
    assert subject.reference.reason == ""
    gc.collect()
    assert COPIES
    assert all(ref() is None for ref in COPIES)
    x = subject.steps[0].probe.sample.args[0].double()
    weight, bias = module.linear.weight.double(), module.linear.bias.double()
    exact = (x @ weight.t() + bias) * module.table.double()
    kept = subject.steps[0].expectation.reference.leaves[0]
    assert kept.dtype is torch.float32
    assert torch.allclose(kept.double(), exact, rtol=1e-7, atol=0)


class Hardcoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.float())


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("there is only one of me")


class Deciding(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 3 - x - x - x != 0).sum(1), x


class Creating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ torch.eye(8)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Hardcoded(), "does not run in float64: RuntimeError"),
        (Uncopyable(16, 8), "cannot be copied to float64: TypeError: there is only one of me"),
        (Deciding(), "does not compute the same in float64: output[0] differs in"),
        (nn.Dropout(), "draws random numbers"),
    ],
)
def test_where_there_is_no_reference_eager_is_it_and_the_reason_is_kept(
    module, reason, make_batches, make_subject
) -> None:
    subject = make_subject(module, make_batches(64))
    assert subject.reference.kind == "eager"
    assert reason in subject.reference.reason
    found = judge(module.forward, subject, precision="float32")
    assert found.accepted
    assert any(reason in note and "compared with the module's own outputs" in note for note in found.notes)


def test_a_forward_that_creates_tensors_runs_under_another_default_dtype(make_batches, make_subject) -> None:
    subject = make_subject(Creating(), make_batches(4))
    assert subject.reference.kind == "float64"
    assert torch.get_default_dtype() is torch.float32


def test_a_copy_that_does_not_fit_in_memory_is_not_made(make_batches, make_subject, monkeypatch) -> None:
    monkeypatch.setattr("aitune.torch.check.reference.free_bytes", lambda _: 100)
    subject = make_subject(Hardcoded(), make_batches(4))
    assert "needs 0 MiB, which are not free" in subject.reference.reason


def test_time_that_is_over_leaves_the_rest_to_eager(net, make_batches, make_graph) -> None:
    samples = make_batches(1, 4)
    subject = prepare(net, make_graph(net, samples), samples, effort=Effort(reference_seconds=0.0))
    assert subject.reference.kind == "eager"
    assert "the time for it was over" in subject.reference.reason


def test_a_reference_can_be_made_elsewhere_and_sent(net, make_batches, make_graph) -> None:
    samples = make_batches(1, 4)
    graph = make_graph(net, samples)
    there = prepare(net, graph, samples)
    sent = pickle.loads(pickle.dumps(there.reference))
    here = prepare(net, graph, samples, effort=Effort(synthesised=False, reference=sent))
    assert here.reference.kind == "float64"
    assert len(here.steps) < len(there.steps)
    assert here.eager_error == pytest.approx(there.steps[0].expectation.error, rel=5)
    other = make_batches(3, 5)
    odd = prepare(net, make_graph(net, other), other, effort=Effort(synthesised=False, reference=sent))
    assert odd.reference.kind == "eager"


def test_a_module_with_state_is_followed_step_by_step(make_batches, make_subject) -> None:
    class Summing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x.sum(0) / 3
            return self.total * 1.1

    module = Summing()
    subject = make_subject(module, make_batches(2, 4))
    assert (subject.reference.kind, subject.reference.reason) == ("float64", "")
    assert 0 < subject.eager_error < 1e-6
    assert judge(module.forward, subject, precision="float32").accepted
    assert not module.total.any()


def test_precisions() -> None:
    mixed = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).half()])
    assert own_precision(mixed, []) is torch.float16
    assert own_precision(nn.ReLU(), [Sample((torch.ones(2, dtype=torch.complex64),))]) is torch.float32
    assert own_precision(nn.ReLU(), [Sample((torch.ones(2, dtype=torch.long),))]) is None
    assert higher_precision(torch.float64) is None
    module = nn.Module()
    module.weight, module.index = nn.Parameter(torch.ones(2, dtype=torch.complex64)), torch.arange(3)
    module.parts = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    raise_module(module, torch.float64)
    assert (module.weight.dtype, module.index.dtype) == (torch.complex128, torch.int64)
    assert [part.dtype for part in module.parts] == [torch.float64] * 2
    raised = raised_sample(Sample((torch.ones(1, dtype=torch.float64), torch.float16)), torch.float32)
    assert (raised.args[0].dtype, raised.args[1]) == (torch.float64, torch.float32)


class Made(TorchDispatchMode):
    """Notes the dtype and size of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[torch.dtype, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not function.is_view:
            self.tensors.append((result.dtype, result.numel()))
        return result


class Kept(nn.Module):
    """Every kind of tensor that a module may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(8, dtype=torch.complex64))
        self.register_buffer("index", torch.arange(8))
        self.plain = [torch.linspace(0, 1, 8)]
        self.marked = nn.Parameter(torch.ones(8))
        self.marked.note = "what torch copies in its own way"


def test_a_copy_in_higher_precision_takes_its_own_memory_and_no_more() -> None:
    module = Kept()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with Made() as made:
        raised = raised_copy(module, torch.float64)
    assert (torch.float32, 64) not in made.tensors, "no copy in the module's own precision comes in between"
    assert made.tensors.count((torch.float64, 64)) == 1
    kinds = {name: value.dtype for name, value in raised.state_dict().items()}
    assert {kind for name, kind in kinds.items() if name not in ("scale", "index")} == {torch.float64}
    assert (kinds["scale"], kinds["index"]) == (torch.complex128, torch.int64)
    assert raised.plain[0].dtype is torch.float64
    assert raised.second.weight is raised.first.weight
    assert [p.requires_grad for p in raised.parameters()] == [p.requires_grad for p in module.parameters()]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.dtype is before[name].dtype for name, value in module.state_dict().items())
    assert not {id(value) for value in raised.state_dict().values()} & {id(one) for one in module.parameters()}
