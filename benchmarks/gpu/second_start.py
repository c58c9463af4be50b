"""The second start of a program on a GPU: whole processes until their first answer, tuned from the store or eager.

Each process imports torch, makes the model with its weights, brings it to the device and, tuned, calls ``ait.tune`` as
in its first run: the kept engine is loaded and checked on a sample. First runs are made side by side, the others in
turn.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["GOAL_SECONDS", "STORE", "WAYS", "Way", "measured"]

STORE = "AITUNE_GPU_BENCHMARK_STORE"
"""Names a folder for the stores: one that is kept needs no first start again."""
GOAL_SECONDS = 2.0
ROUNDS = 3
EAGER = "eager"
_PREFIX = "second-start:"
Row = dict[str, Any]

PROGRAM = """
import json, sys
import torch
from benchmarks.gpu.models import MODELS

model, way = sys.argv[1:]
torch.manual_seed(0)
module, args, kwargs = MODELS[model]()
found = {}
if way != "eager":
    import aitune.torch as ait
    from benchmarks.gpu.candidates import candidates

    strategy = ait.FirstWinsStrategy(backends=[candidates()[way]()])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    handle = ait.Module(module, model, strategy)
    handle.enable_recording()
    with torch.no_grad():
        module(*args, **kwargs)
    result = ait.tune(module)
    (graph,) = result.modules[model].graphs
    trials = [f"{trial.backend}: {trial.verdict}: {trial.reason[:200]}" for trial in graph.trials]
    found = {"chosen": graph.chosen, "recalled": graph.recalled, "tune_seconds": result.seconds, "trials": trials}
with torch.no_grad():
    module(*args, **kwargs)
torch.cuda.synchronize()
print("answered", flush=True)
if way != "eager":
    from benchmarks.gpu.row import surroundings

    found["engine_calls"] = sum(ait.handle(module).stats.engine_calls.values())
    found |= surroundings()
print(json.dumps(found), flush=True)
"""


@dataclass(frozen=True)
class Way:
    """A model with the backend whose kept engine serves its second start."""

    model: str
    backend: str

    @property
    def subject(self) -> str:
        """The name of its row."""
        return f"{_PREFIX}{self.backend}"


WAYS = (
    Way("bert-base-fp16-b8x128", "tensorrt-graphs"),
    Way("bert-base-fp16-b8x128", "inductor-aot-graphs"),
    Way("resnet50-fp32-b1", "tensorrt-traced"),
    Way("resnet50-fp32-b1", "inductor-aot-graphs"),
)


def measured(ways: Sequence[Way], folder: Path, end: float) -> Iterator[Row]:
    """Start every program twice and more; rows are given as they are done.

    Args:
        ways: What to start.
        folder: Where the store is to be.
        end: When to stop, as ``time.time``.
    """
    models = list(dict.fromkeys(way.model for way in ways))
    first = {way: _start(way.model, way.backend, folder) for way in ways}
    for way, process in first.items():
        _answer(process, end)
        print(f"first start of {way.model} with {way.backend}", flush=True)
    for model in models:
        mine = [way for way in ways if way.model == model]
        seconds: dict[str, list[float]] = {name: [] for name in (EAGER, *(way.backend for way in mine))}
        last: dict[str, Row] = {}
        for _ in range(ROUNDS):
            for name in random.sample(list(seconds), len(seconds)):
                if time.time() > end - 20:
                    break
                took, last[name] = _answer(_start(model, name, folder), end)
                seconds[name].append(took)
        complete = min(len(found) for found in seconds.values())
        if complete:
            eager = seconds[EAGER][:complete]
            yield from (_row(way, eager, seconds[way.backend][:complete], last[way.backend]) for way in mine)
        if complete < ROUNDS:
            return


def _start(model: str, way: str, folder: Path) -> tuple[float, subprocess.Popen[str]]:
    environment = {**os.environ, "AITUNE_CACHE_DIR": str(folder / f"store-{model}-{way}")}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, model, way]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return time.perf_counter(), subprocess.Popen(command, env=environment, start_new_session=True, **pipes)


def _answer(started: tuple[float, subprocess.Popen[str]], end: float) -> tuple[float, Row]:
    """Return the seconds until the first answer, and what the program says of its tune."""
    before, process = started
    assert process.stdout is not None
    took, found = float("nan"), {"failure": "it gave no answer"}
    for line in process.stdout:
        if line == "answered\n":
            took = time.perf_counter() - before
        elif line.startswith("{"):
            found = json.loads(line)
    process.wait(max(1.0, end - time.time()))
    return took, found


def _row(way: Way, eager: Sequence[float], tuned: Sequence[float], found: Row) -> Row:
    more = sorted(ours - theirs for ours, theirs in zip(tuned, eager, strict=True))
    return {
        "model": way.model,
        "subject": way.subject,
        "more_seconds": {"median": median(more), "low": more[0], "high": more[-1]},
        "goal": GOAL_SECONDS,
        "eager_seconds": list(eager),
        "tuned_seconds": list(tuned),
        **found,
    }
