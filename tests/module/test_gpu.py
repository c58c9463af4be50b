"""Changes of a tuned module whose weights are on a CUDA device."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

EVERY_KIND = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool)


class Deep(nn.Module):
    """Two hundred tensors on the device, and buffers of other kinds."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(100))
        for i, dtype in enumerate(EVERY_KIND):
            self.register_buffer(f"kind{i}", torch.ones(3, 5).to(dtype))
        self.register_buffer("nan", torch.full((4,), torch.nan))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def x():
    return torch.ones(2, 16, device="cuda")


@pytest.fixture
def served(recorded, install, engine_of, x):
    model = Deep().eval().cuda()
    (graph,) = recorded(model, [(2, (x,), {})])
    return model, install(model, (graph, engine_of(lambda x: "engine")))


WRITES = {
    "a weight in the middle": lambda m: m.layers[50].weight.data.mul_(2),
    "a bias at the end": lambda m: m.layers[99].bias.data.copy_(torch.randn(16)),
    "all of a table": lambda m: m.table.weight.data.add_(1),
    "other memory": lambda m: setattr(m.layers[3].weight, "data", torch.randn(16, 16, device="cuda")),
    **{
        f"a buffer of {dtype}": lambda m, i=i: m.get_buffer(f"kind{i}").data.zero_()
        for i, dtype in enumerate(EVERY_KIND)
    },
}


@pytest.mark.parametrize("name", WRITES)
@torch.no_grad()
def test_writes_that_no_version_tells_are_noticed_within_50_calls(served, x, name):
    model, dispatcher = served
    assert [model(x) for _ in range(130)] == ["engine"] * 130
    WRITES[name](model)
    answers = [model(x) for _ in range(50)]
    assert torch.equal(answers[-1], model._call_impl(x))
    assert list(dispatcher.stats.fallbacks) == ["weights changed"]


@torch.no_grad()
def test_a_write_is_noticed_while_the_device_is_far_behind_the_host(served, x):
    model, _ = served
    for _ in range(130):
        model(x)  # kernels are loaded when they are needed first, for which the device is waited for
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        model.layers[50].weight.data.mul_(2)
        started = time.perf_counter()
        answers = [model(x) for _ in range(50)]
        ahead = time.perf_counter() - started
        assert answers == ["engine"] * 50  # nobody can know yet
        assert ahead < 0.1  # and nobody waited
        other.synchronize()
        assert torch.is_tensor([model(x) for _ in range(50)][-1])


@torch.no_grad()
def test_a_graph_that_is_captured_sees_nothing_of_it(served, x):
    model, _ = served
    y = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            model(x)
        y += 1
    graph.replay()
    assert y.tolist() == [1.0] * 4
    assert [model(x) for _ in range(100)] == ["engine"] * 100


@torch.no_grad()
def test_what_looking_costs(served, x, capsys):
    """No assertion about time: the figure is printed. Calls that change nothing are never taken for changes."""
    model, dispatcher = served
    for _ in range(200):
        model(x)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(4000):
        model(x)
    took = time.perf_counter() - started
    torch.cuda.synchronize()
    with capsys.disabled():
        print(f"\n{took / 4000 * 1e6:.1f} us a call, looks at 210 tensors included")
    assert dispatcher.stats.fallbacks == {}
