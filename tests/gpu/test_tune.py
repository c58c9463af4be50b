"""Tuning on a CUDA device, from the call of the user to the answer (scenarios 30, 32, 33, 34)."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import TorchEagerBackend, TorchEagerBackendConfig

pytestmark = pytest.mark.gpu

QUICK = ait.ProfilingConfig(max_seconds=1.0)
GRAPHS = TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True))


def deep():
    """Many small layers: what a CUDA graph gains most from."""
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(24)]).eval().cuda()


@pytest.fixture
def tuned():
    """A tuned module, and a copy of what it was."""
    module = deep()
    before = copy.deepcopy(module)
    strategy = ait.OneBackendStrategy(GRAPHS, profiling_config=QUICK).enable_find_max_batch_size(False)
    result = ait.tune(ait.Module(module, "deep", strategy), list(torch.randn(16, 64)), batch_sizes=[1, 16])
    assert result.modules["deep"].graphs[0].chosen == GRAPHS.describe(), str(result)
    return module, before


@torch.no_grad()
def test_a_cuda_graph_is_chosen_for_a_module_of_many_small_layers(tuned):
    module, before = tuned
    for batch in (1, 7, 16, 40):
        x = torch.randn(batch, 64, device="cuda")
        assert torch.equal(module(x), before(x))
    assert ait.handle(module).stats.engine_calls[GRAPHS.describe()] == 3


def test_nothing_of_the_process_is_changed(unchanged_torch_state):
    module = deep()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.cuda.get_rng_state()
    with unchanged_torch_state():
        strategy = ait.OneBackendStrategy(GRAPHS, profiling_config=QUICK).enable_find_max_batch_size(False)
        ait.tune(ait.Module(module, "deep", strategy), [torch.ones(64) for _ in range(4)])
    assert torch.equal(generator, torch.cuda.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


@torch.no_grad()
def test_a_module_that_is_moved_or_cast_is_right(tuned):
    module, before = tuned
    x = torch.randn(4, 64)
    assert torch.allclose(module.cpu()(x), before.cpu()(x), atol=1e-6)
    assert torch.equal(module.cuda()(x.cuda()), before.cuda()(x.cuda()))
    assert torch.equal(module.half()(x.cuda().half()), before.half()(x.cuda().half()))
    assert torch.equal(module.float()(x.cuda()), before.float()(x.cuda()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
@torch.no_grad()
def test_a_module_on_the_second_device_is_tuned_there():
    module = deep().to("cuda:1")
    before = copy.deepcopy(module)
    strategy = ait.OneBackendStrategy(GRAPHS, profiling_config=QUICK).enable_find_max_batch_size(False)
    ait.tune(ait.Module(module, "deep", strategy), list(torch.randn(16, 64)), batch_sizes=[1, 16])
    x = torch.randn(4, 64, device="cuda:1")
    assert torch.equal(module(x), before(x))
    assert ait.handle(module).stats.engine_calls[GRAPHS.describe()] == 1


@torch.no_grad()
def test_an_output_is_not_overwritten_by_the_next_call(tuned):
    module, before = tuned
    a, b = torch.randn(4, 64, device="cuda"), torch.randn(4, 64, device="cuda")
    first, _ = module(a), module(b)
    assert torch.equal(first, before(a))


@torch.no_grad()
def test_threads_with_shapes_and_streams_of_their_own(tuned):
    module, before = tuned
    problems = []

    def work(index):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(40):
                x = torch.full((1 + index, 64), float(index + 1), device="cuda")
                if not torch.equal(module(x), before(x)):
                    problems.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@torch.no_grad()
def test_ten_thousand_calls_and_untune_keep_memory_flat(tuned):
    module, _ = tuned
    x = torch.randn(4, 64, device="cuda")
    for _ in range(50):
        module(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        module(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    ait.handle(module).untune()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
