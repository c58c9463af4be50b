"""Modules and strategies for tests of tune()."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)


@pytest.fixture
def model():
    return Small().eval()


@pytest.fixture
def samples():
    return [torch.randn(4) for _ in range(8)]


@pytest.fixture
def double_agent():
    """A backend that is right: it runs the original forward, through a function of its own."""

    def make(label="", **config):
        return FunctionBackend(
            lambda job: lambda *args, **kwargs: job.forward(*args, **kwargs),
            FunctionBackendConfig(label=label, **config),
        )

    return make


@pytest.fixture
def always(double_agent):
    """A strategy that installs its backend whether it is faster or not, so that tests do not depend on time."""

    def make(backend=None, **options):
        strategy = ait.OneBackendStrategy(backend or double_agent(), **options)
        return strategy.enable_performance_validation(False).enable_find_max_batch_size(False)

    return make


@pytest.fixture
def unlucky():
    """A backend whose builds fail."""

    def make(job):
        raise RuntimeError("no luck today")

    return FunctionBackend(make, FunctionBackendConfig(label="unlucky"))
