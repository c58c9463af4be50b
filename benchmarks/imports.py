"""What ``import aitune.torch`` adds to ``import torch`` in fresh processes, and what it must not bring."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.record import Record, figure

ROUNDS, QUICK_ROUNDS = 15, 7
GOAL_SECONDS = 0.3

# fmt: off
FORBIDDEN = (
    "diffusers", "modelopt", "onnx", "onnxruntime", "onnxscript", "openvino", "ray", "rich", "tensorrt",
    "tensorrt_rtx", "torch._dynamo", "torch._inductor", "torch_tensorrt", "torchao", "transformers",
)
# fmt: on

CHILD = """
import json, sys, time
{before}
start = time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))
"""


@dataclass(frozen=True)
class Import:
    """An import in a fresh interpreter: the seconds it took, and the modules that were loaded after it."""

    seconds: float
    modules: frozenset[str]


# name: the statement to time, and what runs before it
WAYS = {"torch": ("torch", ""), "aitune": ("aitune.torch", ""), "second": ("aitune.torch", "import torch")}


def measure(quick: bool) -> Record:
    """Import torch, aitune.torch, and aitune.torch after torch, each in fresh processes in random order."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    first = {name: import_in_child(*way) for name, way in WAYS.items()}  # reads the disk, writes bytecode
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name in random.sample(sorted(WAYS), len(WAYS)):
            seconds[name].append(import_in_child(*WAYS[name]).seconds)
    added = [ours - bare for ours, bare in zip(seconds["aitune"], seconds["torch"], strict=True)]
    figures = (
        figure("import aitune.torch minus import torch", "s", added, GOAL_SECONDS),
        figure("import aitune.torch after import torch", "s", seconds["second"], GOAL_SECONDS),
        figure("import torch", "s", seconds["torch"]),
    )
    brought = first["aitune"].modules - first["torch"].modules
    packages = {name.partition(".")[0] for name in brought} - sys.stdlib_module_names - {"aitune"}
    facts = {
        "rounds": rounds,
        "modules added": len(brought),
        "packages added": sorted(packages),
        "forbidden modules added": sorted(brought.intersection(FORBIDDEN)),
    }
    return Record("imports", figures, facts)


def import_in_child(module: str, before: str) -> Import:
    """Time the import of ``module`` in a fresh interpreter that has run the statement ``before``."""
    # With bytecode written, as for a user: where that is switched off, every import would compile again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CHILD.format(module=module, before=before)]
    child = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, modules = json.loads(child.stdout.splitlines()[-1])
    return Import(seconds, frozenset(modules))
