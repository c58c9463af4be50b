"""Engines that trust their inputs are reached, through a tuned module, by calls within their range and by no other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import (
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
    OpenVINOBackend,
    TorchInductorAotBackend,
)


class Rows(nn.Module):
    """Takes rows of 8 numbers, an index for each and a scale without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x, ids, scale):
        return self.linear(x + self.embed(ids)) * scale


def call(size, *, dtype=torch.float32, ids=torch.int64):
    return torch.randn(size, 8, dtype=dtype), torch.randint(0, 32, (size,)).to(ids), torch.tensor(1.5)


@pytest.fixture(
    scope="module",
    params=[
        ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False)),
        pytest.param(ONNXRuntimeBackend(), marks=pytest.mark.slow),
        OpenVINOBackend(),
        pytest.param(TorchInductorAotBackend(), marks=pytest.mark.slow),
    ],
    ids=str,
)
def tuned(request):
    """A module with the engine of one backend, for batches of 2 to 6."""
    torch.manual_seed(0)
    module = Rows().eval()
    strategy = ait.OneBackendStrategy(request.param, profiling_config=ait.ProfilingConfig(max_seconds=0.2))
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    handle = ait.Module(module, "rows", strategy)
    handle.enable_recording()
    with torch.no_grad():
        for size in (2, 6):
            module(*call(size))
    handle.tune()
    yield handle, module
    handle.untune()


WITHIN = {
    "smallest": lambda: call(2),
    "largest": lambda: call(6),
    "in between": lambda: call(4),
    "transposed": lambda: (torch.randn(8, 5).t(), *call(5)[1:]),
    "every other": lambda: (torch.randn(5, 16)[:, ::2], torch.randint(0, 32, (10,))[::2], torch.tensor(2.0)),
    "backwards": lambda: (call(3)[0].flip(0), call(3)[1].expand(3), torch.randn(3)[1]),
    "overlapping": lambda: (torch.randn(1, 8).expand(4, 8), torch.tensor([3]).expand(4), torch.tensor(0.5)),
}
OUTSIDE = {
    "a negated view": lambda: (torch.randn(3, 8, dtype=torch.complex64).conj().imag, *call(3)[1:]),
    "a batch below": lambda: call(1),
    "a batch above": lambda: call(7),
    "a batch far above": lambda: call(500),
    "an empty batch": lambda: call(0),
    "another rank": lambda: (torch.randn(2, 3, 8), torch.randint(0, 32, (2, 3)), torch.tensor(1.0)),
    "sizes that disagree": lambda: (torch.randn(4, 8), torch.randint(0, 32, (1,)), torch.tensor(1.0)),
    "a scale with an axis": lambda: (*call(3)[:2], torch.ones(1)),
    "float64": lambda: (*call(3)[:2], torch.tensor(1.0, dtype=torch.float64)),
    "narrower integers": lambda: call(3, ids=torch.int32),
    "a number": lambda: (*call(3)[:2], 1.5),
    "a sparse tensor": lambda: (call(3)[0].to_sparse().to_dense().to_sparse(), *call(3)[1:]),
}


def outcome(function, args):
    try:
        with torch.no_grad():
            return function(*args)
    except Exception as error:
        return type(error)


def reached(handle):
    return sum(handle.stats.engine_calls.values())


@pytest.mark.parametrize("name", WITHIN)
def test_calls_within_the_range_reach_the_engine_whatever_their_strides(tuned, name):
    handle, module = tuned
    args = WITHIN[name]()
    before = reached(handle)
    found, wanted = outcome(module, args), outcome(module.forward, args)

    assert reached(handle) == before + 1
    assert (found - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.parametrize("name", OUTSIDE)
def test_calls_outside_the_range_never_do_and_are_answered_as_ever(tuned, name):
    handle, module = tuned
    args = OUTSIDE[name]()
    before, fallbacks = reached(handle), sum(handle.stats.fallbacks.values())
    found, wanted = outcome(module, args), outcome(module.forward, args)

    assert reached(handle) == before
    assert sum(handle.stats.fallbacks.values()) == fallbacks + 1
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    else:
        assert found is wanted
