"""The benchmark of CPU backends: how rows are judged and shown; the whole of it runs in a slow test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.cpu.by_hand import PICKS, relative_error
from benchmarks.cpu.models import MODELS
from benchmarks.cpu.row import ratio, verdict
from benchmarks.cpu.table import summary, table

ROOT = Path(__file__).parents[2]


def row(model, automatic, best, **changes):
    found = {"low": automatic / best - 0.01, "high": automatic / best + 0.01}
    return {
        "model": model,
        "batch": 1,
        "date": "2026-12-01T00:00:00+00:00",
        "machine": {"cpu": "a processor", "cores": 2},
        "versions": {"torch": "2.13"},
        "eager_ms": 1.5,
        "by_hand": {"onnxruntime": {"speedup": best, "error": 1e-6}, "openvino": {"failed": "E: no | such"}},
        "automatic": {"speedup": automatic, "chosen": "ONNXRuntimeBackend()"},
        "best": {"name": "onnxruntime", "speedup": best},
        "ratio": {"against": "onnxruntime", "speedup": automatic / best, **found},
        "verdict": "met",
    } | changes


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.99, 1.2, "met"),  # surely not behind
        (0.98, 1.5, "met"),
        (0.96, 1.0, "met"),  # 0.98 is within, and the interval is narrow
        (0.93, 1.02, "open"),  # too wide to tell
        (0.90, 0.97, "missed"),  # surely behind
        (None, 1.0, "open"),
    ],
)
def test_a_row_is_judged_as_the_guarantee_reads(low, high, expected):
    assert verdict({"low": low, "high": high}) == expected


def test_quick_calls_are_judged_without_the_dispatch_cost():
    from aitune.testing import FakeClock
    from aitune.torch.measure import Stopwatch, compare

    clock = FakeClock()
    timing = compare(clock.callable(103e-6), clock.callable(100e-6), stopwatch=Stopwatch(clock=clock), min_gain=-0.02)
    assert verdict(ratio(timing, "onnxruntime", None)) == "missed"
    corrected = ratio(timing, "onnxruntime", 3.0)
    assert corrected["speedup"] == pytest.approx(1.0)
    assert verdict(corrected) == "met"


def test_the_summary_has_geometric_means_and_counts():
    rows = [row("mlp", 2.0, 2.0), row("gpt2", 1.0, 2.0, verdict="missed"), {"model": "unet", "batch": 1, "failed": "x"}]
    found = summary(rows)
    means = found["geometric means by batch size"]["1"]

    assert means["automatic"] == pytest.approx(2**0.5)
    assert means["best by hand"] == pytest.approx(2.0)
    assert not means["met"]
    assert found["rows"] == {"met": 1, "open": 0, "missed": 1, "failed": 1}


def test_the_table_shows_every_row_and_leaves_what_failed_empty():
    failed = {"model": "unet", "batch": 8, "failed": "its process | ended"}
    text = table([row("mlp", 1.9, 2.0), failed])
    lines = text.splitlines()

    columns = lines[0].count("|")
    assert all(line.count("|") == columns for line in lines[:4])
    assert "| mlp | 1 | 1.5 | - | 2.00 | - |" in lines[2]
    assert "0.950 [0.940, 0.960] (onnxruntime)" in lines[2]
    assert "failed" in lines[3]


@pytest.mark.parametrize("name", ["mlp", "resnet18", "mobilenetv2"])
def test_models_are_the_same_every_time_and_take_their_inputs(name):
    reference = MODELS[name]
    state = torch.get_rng_state()
    one, other = reference.model(), reference.model()
    assert torch.equal(torch.get_rng_state(), state)
    inputs = reference.inputs(2)
    with torch.no_grad():
        assert relative_error(one(*inputs), other(*inputs)) == 0.0
    assert not one.training


def test_resnet18_and_mobilenetv2_have_the_parameters_of_their_papers():
    counts = {name: sum(p.numel() for p in MODELS[name].model().parameters()) for name in ("resnet18", "mobilenetv2")}
    assert counts == {"resnet18": 11_689_512, "mobilenetv2": 3_504_872}


def test_every_pick_uses_the_librarys_own_interface():
    source = (ROOT / "benchmarks" / "cpu" / "by_hand.py").read_text(encoding="utf-8")
    assert "aitune.torch" not in source
    assert set(PICKS) == {"channels_last", "onnxruntime", "openvino", "aot_frozen", "compile", "compile_frozen"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_short_form_measures_a_row():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cpu", "--quick", "--models", "mlp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert "| mlp | 1 |" in done.stdout, done.stdout + done.stderr
    assert "failed" not in done.stdout.rsplit("verdict", 1)[-1], done.stdout
