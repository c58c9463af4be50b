"""The second start of a program: whole processes until their first answer, tuned from the store against eager.

Each process imports torch, makes the model with its weights and, tuned, calls ``ait.tune`` as in the first run, which
loads the kept engine and checks it on a sample (decision 23). Eager and tuned processes take turns in random order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cpu.models import MODELS
from benchmarks.record import RESULTS, figure, surroundings

__all__ = ["main"]

GOAL_SECONDS = 2.0
ROUNDS, QUICK_ROUNDS = 7, 3
EAGER = "eager"
BACKENDS = ("OpenVINOBackend", "ONNXRuntimeBackend", "TorchInductorAotBackend", "TorchInductorJitBackend")
FILE = RESULTS / "second_start.json"

PROGRAM = """
import json, sys
import torch
from benchmarks.cpu.models import MODELS

way, name = sys.argv[1:]
model = MODELS[name].model()
torch.manual_seed(0)
samples = [tuple(tensor[0] for tensor in MODELS[name].inputs(1)) for _ in range(4)]
inputs = MODELS[name].inputs(2)
found = {}
if way != "eager":
    import aitune.torch as ait
    from aitune.torch import backend

    strategy = ait.FirstWinsStrategy(backends=[getattr(backend, way)()])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    model = ait.Module(model, name, strategy)
    result = ait.tune(model, samples)
    (graph,) = result.modules[name].graphs
    found = {"recalled": graph.recalled, "chosen": graph.chosen, "tune_seconds": result.seconds}
with torch.no_grad():
    model(*inputs)
print("answered", flush=True)
if way != "eager":
    found["engine_calls"] = sum(ait.handle(model).stats.engine_calls.values())
print(json.dumps(found))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for; returns how many starts surely take too long."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks second_start", description=__doc__)
    parser.add_argument("--models", default="minilm,unet", help=f"comma-separated, of {', '.join(MODELS)}")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="comma-separated class names")
    parser.add_argument("--store", type=Path, help="folder of the store; one that is kept needs no first tune again")
    parser.add_argument("--quick", action="store_true", help="few rounds; writes no record")
    chosen = parser.parse_args(arguments)
    missed = 0
    with ExitStack() as stack:
        store = chosen.store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aitune-benchmark-")))
        for model in chosen.models.split(","):
            rows = measured(model, chosen.backends.split(","), store, QUICK_ROUNDS if chosen.quick else ROUNDS)
            for row in rows:
                print(told(row), flush=True)
                missed += row["verdict"] == "missed"
            if not chosen.quick:
                write(rows)
                print(f"written to {FILE}")
    return missed


def measured(model: str, backends: Sequence[str], store: Path, rounds: int) -> list[dict[str, Any]]:
    """Start every way in turn; the first start of each is not counted, it tunes or warms the disk."""
    ways = [EAGER, *backends]
    for way in ways:
        _, found = start(way, model, store)
        print(f"{model}, {way}: first start {found}", flush=True)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for way in random.sample(ways, len(ways)):
            took, last[way] = start(way, model, store)
            seconds[way].append(took)
    return [row(model, backend, seconds[EAGER], seconds[backend], last[backend]) for backend in backends]


def start(way: str, model: str, store: Path) -> tuple[float, dict[str, Any]]:
    """Run the program; returns the seconds until it has its first answer, and what it says of its tune."""
    environment = {**os.environ, "AITUNE_CACHE_DIR": str(store)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with bytecode written, as for a user
    command = [sys.executable, "-c", PROGRAM, way, model]
    before = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "answered\n":
                took = time.perf_counter() - before
                break
        else:
            raise RuntimeError(f"{way} of {model} gave no answer")
        return took, json.loads(process.stdout.read())


def row(
    model: str, backend: str, eager: Sequence[float], tuned: Sequence[float], found: dict[str, Any]
) -> dict[str, Any]:
    """Summarise the rounds of one backend."""
    more = [ours - bare for ours, bare in zip(tuned, eager, strict=True)]
    seen = figure("first answer after eager's", "s", more, GOAL_SECONDS)
    return {
        "model": model,
        "backend": backend,
        "more_seconds": {"median": seen.median, "low": seen.low, "high": seen.high},
        "goal": GOAL_SECONDS,
        "verdict": seen.verdict,
        "eager_seconds": list(eager),
        "tuned_seconds": list(tuned),
        **found,
        **surroundings(),
    }


def told(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    more = row["more_seconds"]
    eager, tuned = (sorted(row[name])[len(row[name]) // 2] for name in ("eager_seconds", "tuned_seconds"))
    return (
        f"{row['model']}, {row['backend']}: first answer after {tuned:.2f} s, eager's after {eager:.2f} s;"
        f" {more['median']:.2f} s more [{more['low']:.2f}, {more['high']:.2f}], at most {row['goal']:g}:"
        f" {row['verdict']}; {'recalled' if row['recalled'] else 'NOT recalled'}, chosen {row['chosen']}"
    )


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Write rows into the record, in the place of earlier ones of the same model and backend."""
    known = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.exists() else []
    by_name = {(one["model"], one["backend"]): one for one in (*known, *rows)}
    temporary = FILE.with_suffix(".tmp")
    content = {"benchmark": "second_start", "rows": [by_name[name] for name in sorted(by_name)]}
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(FILE)
