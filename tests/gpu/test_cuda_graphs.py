"""CUDA graphs under an engine: replays do what calls do, and what cannot be replayed is run."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendUnsupportedError
from aitune.testing import Case
from aitune.torch.backend import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.graph.accessor import compile_call

pytestmark = pytest.mark.gpu

BACKEND = TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True))


def rows(batch, random):
    return (torch.randn(batch, 8, generator=random),), {}


@pytest.fixture
def graphed(tmp_path):
    """Make ``run``, the graphs behind it and the module, of a module class."""
    made = []

    def make(kind, inputs=rows, batches=(1, 4)):
        job = Case("case", kind, inputs, batches).job(Path(tmp_path), "cuda")
        graphs = CudaGraphs(lambda tensors: job.forward(*tensors), job.graph, job.module)
        made.append(graphs)
        return compile_call(job.graph, graphs), graphs, job.module

    yield make
    for graphs in made:
        graphs.close()


def net():
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))


@torch.no_grad()
def test_a_replay_changes_no_number_and_outputs_may_be_kept(graphed):
    run, graphs, module = graphed(net)
    inputs = [torch.randn(4, 8, device="cuda") for _ in range(5)]
    outputs = [run(x) for x in inputs]

    assert graphs.forms == 1
    assert all(torch.equal(y, module(x)) for x, y in zip(inputs, outputs, strict=True))


@torch.no_grad()
def test_many_forms_stay_bounded_and_right(graphed):
    run, graphs, module = graphed(net, batches=(1, 64))
    for _ in range(3):
        for batch in range(1, 33):
            x = torch.randn(batch, 8, device="cuda")
            assert torch.equal(run(x), module(x))
    assert 1 <= graphs.forms <= 8
    x = torch.randn(33, 8, device="cuda")
    for _ in range(40):
        assert torch.equal(run(x), module(x))
    assert tuple(x.shape for x in (x,)) in graphs._captures  # seen often enough to take another's place


@torch.no_grad()
def test_weights_that_change_in_place_are_followed_and_moved_ones_too(graphed):
    run, graphs, module = graphed(net)
    x = torch.randn(4, 8, device="cuda")
    run(x), run(x)
    module[0].weight.mul_(2)
    assert torch.equal(run(x), module(x))
    module[2].bias = nn.Parameter(torch.randn(8, device="cuda"))
    assert torch.equal(run(x), module(x))
    module[0].weight.data = torch.randn(64, 8, device="cuda")
    assert torch.equal(run(x), module(x))
    module.load_state_dict({k: torch.randn_like(v) for k, v in module.state_dict().items()}, assign=True)
    for _ in range(3):
        assert torch.equal(run(x), module(x))
    assert graphs.forms == 1  # captured anew


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@torch.no_grad()
def test_state_that_a_call_changes_is_changed_once_by_each(graphed):
    run, graphs, module = graphed(Counting)
    x = torch.ones(4, 8, device="cuda")
    before = int(module.calls)
    versions = []
    for i in range(1, 6):
        assert torch.equal(run(x), x * (before + i))
        versions.append(module.calls._version)
    assert graphs.forms == 1
    assert versions == sorted(set(versions)), "others are to see by the version that it changed"


class Writing(nn.Module):
    def forward(self, x, y):
        x.add_(1)
        return x + y


@torch.no_grad()
def test_inputs_that_a_call_writes_to_are_written_once(graphed):
    run, graphs, _ = graphed(
        Writing, lambda n, r: ((torch.randn(n, 8, generator=r), torch.randn(n, 8, generator=r)), {})
    )
    for _ in range(4):
        x, y = torch.zeros(4, 8, device="cuda"), torch.ones(4, 8, device="cuda")
        assert torch.equal(run(x, y), torch.full_like(x, 2))
        assert torch.equal(x, torch.ones_like(x))
    assert graphs.forms == 1
    x = torch.zeros(4, 8, device="cuda")
    assert torch.equal(run(x, x), torch.full_like(x, 2))  # one memory for both


@torch.no_grad()
def test_random_numbers_are_those_of_the_module(graphed):
    run, graphs, module = graphed(lambda: nn.Dropout(0.5))
    module.train()
    x = torch.ones(4, 8, device="cuda")
    run(x), run(x)
    assert graphs.forms == 1
    torch.cuda.manual_seed(5)
    mine = [run(x) for _ in range(3)]
    after = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(5)
    assert all(torch.equal(y, module(x)) for y in mine)
    assert torch.equal(after, torch.cuda.get_rng_state())


class Waiting(nn.Module):
    def forward(self, x):
        return x * float(x.sum().item())


class Setting(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last


class OnTheHost(nn.Module):
    def forward(self, x):
        return x + 1, x.sum().cpu()


@pytest.mark.parametrize(
    ("kind", "reason"), [(Waiting, "captur"), (Setting, "forward sets last"), (OnTheHost, "captur|is on cpu")]
)
def test_what_cannot_be_captured_is_refused_and_does_no_harm(kind, reason, tmp_path):
    job = Case("case", kind, rows).job(Path(tmp_path), "cuda")
    with torch.no_grad(), pytest.raises(BackendUnsupportedError, match=reason):
        BACKEND.build(job)
    x = torch.randn(4, 8, device="cuda")
    assert torch.isfinite(torch.randn(4, device="cuda")).all(), "random numbers go on"
    with torch.no_grad():
        module = net().cuda()
        good = BACKEND.build(Case("good", net, rows).job(Path(tmp_path, "good"), "cuda"))
        assert torch.isfinite(good.run(x)).all()
        assert torch.isfinite(module(x)).all()
        good.close()


@torch.no_grad()
def test_a_call_that_fails_to_be_captured_is_answered(graphed):
    run, graphs, module = graphed(Waiting)
    x = torch.randn(4, 8, device="cuda")
    for _ in range(4):
        assert torch.equal(run(x), module(x))
    assert graphs.forms == 0
    assert "cannot be captured" in graphs.problem


@torch.no_grad()
def test_threads_and_streams_get_their_own_answers(graphed):
    run, _, module = graphed(net, batches=(1, 512))
    problems = []

    def work(index):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            random = torch.Generator("cuda").manual_seed(index)
            for _ in range(60):
                x = torch.randn(64 * (1 + index % 4), 8, device="cuda", generator=random)
                y, wanted = run(x), module(x)
                if not torch.equal(y, wanted):
                    problems.append(float((y - wanted).abs().max()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]


@torch.no_grad()
def test_a_graph_of_the_callers_own_is_left_alone(graphed):
    run, _, module = graphed(net)
    x = torch.randn(4, 8, device="cuda")
    run(x), run(x)
    torch.cuda.synchronize()
    own = torch.cuda.CUDAGraph()
    with torch.cuda.graph(own):
        y = run(x)
    x.copy_(torch.randn(4, 8, device="cuda"))
    own.replay()
    assert torch.equal(y, module(x))


def test_inference_mode_and_gradients_do_not_matter(graphed):
    run, _, module = graphed(net)
    x = torch.randn(4, 8, device="cuda")
    with torch.no_grad():
        wanted = module(x)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad) * 2:
        with mode():
            y = run(x.clone())
            assert torch.equal(y, wanted)
            assert y.is_inference() is torch.is_inference_mode_enabled()
            assert not y.requires_grad


@torch.no_grad()
def test_closing_gives_the_memory_back(graphed):
    def wide():
        return nn.Sequential(nn.Linear(8, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 1))

    run, graphs, _ = graphed(wide, batches=(1, 32))
    x = torch.randn(32, 8, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        run(x)
    assert graphs.forms == 1
    assert torch.cuda.memory_reserved() > before
    graphs.close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (40 << 20)
    assert run(x).shape == (32, 1)


@torch.no_grad()
def test_ten_thousand_calls_take_no_memory(graphed):
    run, _, _ = graphed(net)
    x = torch.randn(4, 8, device="cuda")
    for _ in range(10):
        run(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        run(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
