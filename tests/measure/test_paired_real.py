"""The one place where this room's tests use real time: a module against itself, judged by ratios alone."""

from __future__ import annotations

import pytest
import torch

from aitune.torch.measure import ProfilingConfig, compare


def gains_claimed(runs: int) -> int:
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    x = torch.randn(4, 64)

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return mlp(x)

    timings = [compare(call, call, config=ProfilingConfig(seed=seed, max_seconds=0.3)) for seed in range(runs)]
    assert all(timing.blocks for timing in timings)
    return sum(timing.outcome == "faster" for timing in timings)


def test_a_real_module_is_not_faster_than_itself():
    assert gains_claimed(10) <= 1


@pytest.mark.slow
def test_a_real_module_is_not_faster_than_itself_in_100_runs():
    assert gains_claimed(100) <= 1
