"""Just-in-time tuning that is off again after each test, with backends that build in no time."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch.jit.config import jit_config
from aitune.torch.jit.patched_module import history
from aitune.torch.jit.patcher import disable_jit_tuning, enable_jit_tuning


@pytest.fixture
def always():
    """A strategy that installs a right engine whether it is faster or not."""

    def make(backend=None):
        right = FunctionBackend(
            lambda job: lambda *args, **kwargs: job.forward(*args, **kwargs), FunctionBackendConfig(label="right")
        )
        quick = ait.ProfilingConfig(
            block_calls=1, warmup_calls=1, min_blocks=1, max_blocks=4, confidence=0.5, max_seconds=1.0
        )
        strategy = ait.OneBackendStrategy(backend or right, profiling_config=quick)
        return strategy.enable_performance_validation(False).enable_find_max_batch_size(False)

    return make


@pytest.fixture
def settings(always):
    """``jit_config`` with quick backends, and what goes wrong in aitune raised; as it was after the test."""
    before = dict(jit_config._values)
    jit_config.strategy = always()
    jit_config.raise_failures = True
    yield jit_config
    jit_config._values.clear()
    jit_config._values.update(before)


@pytest.fixture
def jit(settings):
    """The same with tuning enabled."""
    enable_jit_tuning()
    yield settings
    disable_jit_tuning()


@pytest.fixture
def steps():
    """Return the steps taken since the test began."""
    start = len(history.lines())
    return lambda: history.lines()[start:]


@pytest.fixture(autouse=True)
def leaves_nothing():
    """Whatever a test does, no call is intercepted after it."""
    yield
    disable_jit_tuning()
    assert torch.nn.Module._compiled_call_impl is None


class Block(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(torch.nn.Module):
    """Two blocks in a container, and a layer behind them."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.act = torch.nn.ReLU()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.act(self.blocks(x)))


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def seen():
    """Return the hierarchy as ``(name, level, state)`` in order."""

    def flat(nodes):
        for node in nodes:
            yield node.name, node.level, str(node.state)
            yield from flat(node.children)

    return lambda: list(flat(ait.PatchedModule.hierarchy()))
