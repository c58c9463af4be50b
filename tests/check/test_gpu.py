"""The value check on a CUDA device."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aitune.torch.check import Effort, judge, no_trace, prepare, run_watch
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def samples(make_batches) -> list[Sample]:
    return [Sample((sample.args[0].cuda(),), {}, sample.batch_size) for sample in make_batches(1, 4, 8)]


def test_right_and_wrong_candidates(net, samples, make_subject) -> None:
    module = net.cuda()
    subject = make_subject(module, samples)
    assert subject.reference.kind == "float64"
    assert subject.eager_error < 1e-2
    half = copy.deepcopy(module).half()
    buffer = torch.zeros(8, 8, device="cuda")

    def in_one_buffer(x: torch.Tensor) -> torch.Tensor:
        buffer[: len(x)] = module(x)
        return buffer[: len(x)]

    assert judge(module.forward, subject, precision="float32").accepted
    assert judge(lambda x: half(x.half()).float(), subject, precision="float16").accepted
    assert judge(lambda x: half(x.half()).float() * 1.01, subject, precision="float32").verdict is Verdict.wrong
    assert "has device cpu" in judge(lambda x: module(x).cpu(), subject, precision="float32").reason
    assert "earlier call" in judge(in_one_buffer, subject, precision="float32").reason
    assert run_watch(module.forward, subject, precision="float32").accepted


def test_random_numbers_of_the_device(samples, make_subject) -> None:
    module = nn.Dropout(0.5).train().cuda()
    state = torch.cuda.get_rng_state()
    subject = make_subject(module, samples)
    assert subject.random
    assert judge(module.forward, subject, precision="float32").accepted
    assert judge(lambda x: F.dropout(x, 0.4), subject, precision="float32").verdict is Verdict.random
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_write_to_a_parameter_is_seen_and_undone() -> None:
    module = nn.Linear(600, 600).cuda()
    before = module.weight.detach().clone()
    with no_trace(module) as found:
        module.weight.data[3, 3] += 1
        assert list(found.changes(deep=True)) == ["weight"]
    assert torch.equal(module.weight, before)


def test_a_large_output_is_compared_in_little_memory(make_subject) -> None:
    class Scaling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2.0

    sample = Sample((torch.randn(64, 1 << 20, device="cuda"),))
    subject = make_subject(Scaling(), [sample])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert judge(lambda x: x * 2.00001, subject, precision="float32").accepted
    outputs = sample.args[0].nbytes
    assert torch.cuda.max_memory_allocated() - before < 14 * outputs


def test_a_reference_whose_module_waits_on_the_host_meanwhile(samples, make_graph) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 2048), nn.Linear(2048, 2048)).cuda()  # what is smaller stays
    before = {name: value.clone() for name, value in module.state_dict().items()}
    graph = make_graph(module, samples)

    there = prepare(module, graph, samples)
    away = prepare(module, graph, samples, effort=Effort(aside=True))

    assert away.reference.kind == "float64"
    assert len(there.steps) == len(away.steps)
    for one, other in zip(there.reference.outcomes, away.reference.outcomes, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert judge(module.forward, away, precision="float32").accepted


def test_the_device_holds_a_copy_in_higher_precision_in_place_of_the_module_not_beside_it(samples, make_graph) -> None:
    layers = [nn.Linear(4096, 4096, bias=False, device="cuda") for _ in range(16)]
    module = nn.Sequential(nn.Linear(16, 4096, device="cuda"), *layers)
    size = sum(one.nbytes for one in module.parameters())
    graph = make_graph(module, samples)
    torch.cuda.empty_cache()
    others = torch.cuda.memory_reserved() - size
    torch.cuda.reset_peak_memory_stats()
    prepare(module, graph, samples, effort=Effort(aside=True))
    assert torch.cuda.max_memory_reserved() - others < 2.5 * size  # in float64 it is twice as large
