"""The code of the tune strategies guide runs as it is printed, and the calls that it makes work everywhere.

The guide is a text outside this repository. It is read from ``../shared/reference`` or from the folder that
``AITUNE_GUIDES`` names, and nothing of it is kept here.
"""

from __future__ import annotations

import copy
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneError
from aitune.torch.backend import (
    TensorRTBackend,
    TensorRTBackendConfig,
    TorchAOBackend,
    TorchAOBackendConfig,
    TorchInductorJitBackend,
    TorchInductorJitBackendConfig,
)

ROOT = Path(__file__).parents[1]
GUIDES = Path(os.environ.get("AITUNE_GUIDES", ROOT.parent / "shared" / "reference"))
GUIDE = GUIDES / "tune-strategies-guide.txt"
STRATEGIES = ("OneBackendStrategy", "FirstWinsStrategy", "MaxThroughputStrategy")

needs_guides = pytest.mark.skipif(not GUIDES.is_dir(), reason=f"no guides in {GUIDES}; AITUNE_GUIDES names another")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="TensorRT may work on this machine")

# The text has no fences: a block begins after a line "Usage" and ends before the next heading.
_USAGE = re.compile(
    r"^Usage\n+(?P<code>from aitune\.torch\.backend import.*?)\n+(?=When to Use$|How It Works$)",
    re.DOTALL | re.MULTILINE,
)


def usage_blocks(text: str) -> list[str]:
    return [match["code"] + "\n" for match in _USAGE.finditer(text)]


class Classifier(torch.nn.Module):
    """Small enough to build in seconds, with a matrix for each backend to work on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), dim=-1)


@pytest.fixture
def preamble() -> dict[str, Any]:
    """The two names that the guide's code takes for granted."""
    return {"model": Classifier().eval(), "input_data": list(torch.randn(8, 16))}


def answers_as(model: torch.nn.Module, eager: torch.nn.Module) -> bool:
    """Compare for sizes that were tuned and for one that was not."""
    with torch.no_grad():
        inputs = [torch.randn(size, 16) for size in (1, 2, 7)]
        return all(torch.allclose(model(x), eager(x), rtol=1e-3, atol=1e-5) for x in inputs)


@needs_guides
def test_the_guide_has_one_usage_block_for_each_strategy() -> None:
    blocks = usage_blocks(GUIDE.read_text(encoding="utf-8"))
    assert len(blocks) == 3
    for block, strategy in zip(blocks, STRATEGIES, strict=True):
        assert f"ait.{strategy}(" in block


@needs_guides
@pytest.mark.parametrize("position", range(3), ids=STRATEGIES)
def test_a_block_of_the_guide_runs_verbatim(position: int, preamble: dict[str, Any]) -> None:
    block = usage_blocks(GUIDE.read_text(encoding="utf-8"))[position]
    eager = copy.deepcopy(preamble["model"])
    exec(compile(block, f"{GUIDE.name}, block {position + 1}", "exec"), preamble)
    assert isinstance(preamble["strategy"], getattr(ait, STRATEGIES[position]))
    assert answers_as(preamble["model"], eager)


@needs_guides
@needs_no_gpu
def test_the_one_backend_block_leaves_the_original_and_logs_an_error(
    preamble: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="aitune"):
        exec(usage_blocks(GUIDE.read_text(encoding="utf-8"))[0], preamble)
    assert [record.levelname for record in caplog.records if record.name.startswith("aitune")] == ["ERROR"]


# ------------------------------------------------------- the same calls, on machines without the guide


def one_backend() -> Any:
    return ait.OneBackendStrategy(backend=TensorRTBackend(TensorRTBackendConfig()))


def first_wins() -> Any:
    return ait.FirstWinsStrategy(backends=[TensorRTBackend(config=TensorRTBackendConfig()), TorchInductorJitBackend()])


def max_throughput() -> Any:
    inductor = TorchInductorJitBackend(config=TorchInductorJitBackendConfig(mode="max-autotune"))
    quantized = TorchAOBackend(config=TorchAOBackendConfig(quantization="fp8wo"))
    return ait.MaxThroughputStrategy(backends=[TensorRTBackend(config=TensorRTBackendConfig()), inductor, quantized])


@needs_no_gpu
@pytest.mark.parametrize("make", [one_backend, first_wins, max_throughput])
def test_the_same_strategy_works_everywhere_and_skips_what_the_machine_lacks_with_a_reason(
    make: Callable[[], Any], preamble: dict[str, Any]
) -> None:
    model, eager = preamble["model"], copy.deepcopy(preamble["model"])
    model = ait.Module(model, "my-model", strategy=make())
    result = ait.tune(model, preamble["input_data"])
    assert answers_as(model, eager)
    (trial,) = (t for t in next(iter(result.modules.values())).graphs[0].trials if t.backend.startswith("TensorRT"))
    assert trial.verdict in (ait.Verdict.not_installed, ait.Verdict.unsupported, ait.Verdict.skipped)
    assert trial.reason


@needs_no_gpu
def test_the_failure_of_the_one_backend_is_kept_in_the_result_and_raised_on_request(
    preamble: dict[str, Any],
) -> None:
    model = ait.Module(preamble["model"], "my-model", strategy=one_backend())
    result = ait.tune(model, preamble["input_data"])
    with pytest.raises(AITuneError, match="TensorRT"):
        result.raise_for_failures()


@pytest.mark.parametrize("make", [one_backend, first_wins, max_throughput])
def test_performance_validation_is_switched_off_by_a_statement(make: Callable[[], Any]) -> None:
    strategy = make()
    assert strategy.enable_performance_validation(False) is strategy
