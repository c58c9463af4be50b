"""What a program's tunes found out is there for the next run of it."""

from __future__ import annotations

import copy

import pytest
import torch

import aitune.torch as ait
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.jit.patcher import disable_jit_tuning, enable_jit_tuning

pytest.importorskip("onnxruntime")

AGAIN = "is as an earlier run chose; no backend was tried"


@pytest.fixture(autouse=True)
def reuse(monkeypatch, isolation):
    monkeypatch.setattr(ait.config, "reuse_store", True)


@pytest.mark.parametrize("faster", [True, False])
def test_a_module_that_was_tuned_before_is_as_it_was_then(jit, net, always, steps, faster):
    if faster:
        jit.strategy = always(ONNXRuntimeBackend())
    else:
        strategy = ait.FirstWinsStrategy(backends=[ONNXRuntimeBackend()], min_speedup_ratio=1e6)
        jit.strategy = strategy.enable_find_max_batch_size(False)
    x, another = torch.ones(2, 4), copy.deepcopy(net)
    with torch.no_grad():
        net(x)
        assert not any(AGAIN in step for step in steps())
        disable_jit_tuning()
        enable_jit_tuning()
        answer = another(x)
        torch.testing.assert_close(another(x), answer)
    assert sum(AGAIN in step for step in steps()) == 1
    assert (ait.handle(another).stats.engine_calls == {"ONNXRuntimeBackend()": 1}) is faster
    assert not any("New child" in step and "Linear" in step for step in steps()[-3:])


def test_a_folder_of_its_own_has_what_is_kept(jit, net, always, cache_dir, tmp_path):
    jit.strategy, jit.cache_dir = always(ONNXRuntimeBackend()), tmp_path
    with torch.no_grad():
        net(torch.ones(2, 4))
    assert list((tmp_path / "store").rglob("*.onnx"))
    assert not (cache_dir / "store").exists()
