"""Engines that lost leave no memory behind: real backends, each measurement in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import gc, json, sys
import psutil, torch
import aitune.torch as ait
from aitune.torch import backend

names = sys.argv[1:]
ait.config.reuse_store = False
torch.manual_seed(0)
layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]  # 134 MB
module = torch.nn.Sequential(*layers).eval()
strategy = ait.MaxThroughputStrategy([getattr(backend, name)() for name in names])
strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
model = ait.Module(module, "stack", strategy=strategy)
result = ait.tune(model, [torch.randn(4, 2048)], [1])
(graph,) = result.modules["stack"].graphs
assert [trial.verdict for trial in graph.trials] == [ait.Verdict.accepted] * len(names), result
gc.collect()
print(json.dumps([graph.chosen, psutil.Process().memory_info().rss]))
"""


def measured(*backends):
    done = subprocess.run([sys.executable, "-c", CODE, *backends], capture_output=True, text=True, check=True)
    chosen, resident = json.loads(done.stdout.splitlines()[-1])
    return chosen, resident


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("other", ["TorchInductorAotBackend", "ONNXRuntimeBackend"])
def test_closing_a_loser_brings_memory_to_that_of_the_winner_alone(other):
    """AOTInductor's library holds the weights once more, and stays mapped; ONNX Runtime's are parts of the heap."""
    pytest.importorskip("openvino")
    chosen, beside_loser = measured(other, "OpenVINOBackend")
    _, alone = measured(chosen.removesuffix("()"))
    assert beside_loser < 1.1 * alone
