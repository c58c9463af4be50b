"""Each backend on the reference set, and the automatic choice among them, on a CUDA device.

Every candidate of a model is tuned in a process of its own: all are built at once, then checked and measured one at a
time. Then the strategies choose, each model in a process of its own. Rows that are there are not measured again, so a
run that was cut short goes on where it stopped:

    python -m benchmarks.gpu --seconds 500 --rows rows.json
    python -m benchmarks.gpu --report rows.json
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_LEFT_OUT = "AITUNE_GPU_BENCHMARK_WITHOUT"
_LONGEST_BUILD = 240.0  # seconds; then those that are built are measured without waiting for the others


def candidates() -> dict[str, Callable[[], Any]]:
    """Return what could be picked by hand."""
    from aitune.torch.backend import (
        TensorRTBackend,
        TensorRTBackendConfig,
        TorchAOBackend,
        TorchAOBackendConfig,
        TorchEagerBackend,
        TorchEagerBackendConfig,
        TorchInductorAotBackend,
        TorchInductorJitBackend,
        TorchInductorJitBackendConfig,
        TorchTensorRTAotBackend,
        TorchTensorRTAotBackendConfig,
        TorchTensorRTJitBackend,
        TorchTensorRTJitBackendConfig,
    )

    return {
        "eager": TorchEagerBackend,
        "eager-graphs": lambda: TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True)),
        "inductor": TorchInductorJitBackend,
        "inductor-graphs": lambda: TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="reduce-overhead")),
        "inductor-max": lambda: TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="max-autotune")),
        "inductor-aot": TorchInductorAotBackend,
        "tensorrt": TensorRTBackend,
        "tensorrt-graphs": lambda: TensorRTBackend(TensorRTBackendConfig(use_cuda_graphs=True)),
        "tensorrt-traced": lambda: TensorRTBackend(TensorRTBackendConfig(use_dynamo=False, use_cuda_graphs=True)),
        "torch-tensorrt-jit": lambda: TorchTensorRTJitBackend(TorchTensorRTJitBackendConfig(use_cuda_graphs=True)),
        "torch-tensorrt-aot": lambda: TorchTensorRTAotBackend(TorchTensorRTAotBackendConfig(use_cuda_graphs=True)),
        "torchao-fp8dq": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="fp8dq", mode="reduce-overhead")),
        "torchao-int8wo": lambda: TorchAOBackend(TorchAOBackendConfig(quantization="int8wo", mode="reduce-overhead")),
    }


STRATEGIES = ("MaxThroughputStrategy", "MinLatencyStrategy")


@dataclass(frozen=True)
class Work:
    """One row to make: a candidate, or a strategy, on a model."""

    model: str
    subject: str

    @property
    def key(self) -> str:
        return f"{self.model}/{self.subject}"


# ------------------------------------------------------------------------------------------ in a process of its own


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Turn:
    """Waits, before a check, until all have been built, and then for its turn on the device."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._stack = contextlib.ExitStack()
        self._measuring = False

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "StageStarted" and event.stage in ("check", "reference") and not self._measuring:
            (self._folder / f"{self._name}.built").touch()
            while not (self._folder / "go").exists():
                time.sleep(0.05)
            self._stack.enter_context(_alone(self._folder))
            self._measuring = True
        elif kind == "TrialFinished":
            self._stack.close()
            self._measuring = False

    def close(self) -> None:
        (self._folder / f"{self._name}.built").touch()
        self._stack.close()


def _default_candidates(strategy: str) -> list[Any]:
    import torch

    from aitune.torch.backend.registry import default_backends

    left_out = os.environ.get(_LEFT_OUT, "").split()
    found = default_backends(strategy, torch.device("cuda"))
    return [backend for backend in found if backend.name not in left_out]


def _row(work: Work, folder: Path) -> dict[str, Any]:
    import torch

    import aitune.torch as ait
    from benchmarks.gpu_models import MODELS

    torch.manual_seed(0)
    module, args, kwargs = MODELS[work.model]()
    by_hand = work.subject not in STRATEGIES
    strategy = (
        ait.OneBackendStrategy(candidates()[work.subject]()).enable_performance_validation(False)
        if by_hand
        else getattr(ait, work.subject)(_default_candidates(work.subject))
    )
    handle = ait.Module(module, work.model, strategy.enable_find_max_batch_size(False))
    handle.enable_recording()
    with torch.no_grad():
        module(*args, **kwargs)
    turn = _Turn(folder, work.key.replace("/", "_"))
    start = time.perf_counter()
    try:
        result = ait.tune(module, progress=turn)
    finally:
        turn.close()
    graph = result.modules[work.model].graphs[0]
    trials = [
        {
            "backend": trial.backend,
            "verdict": str(trial.verdict),
            "reason": trial.reason[:300],
            "precision": trial.precision,
            "error": trial.error,
            "error_bound": trial.error_bound,
            "speedup": trial.speedup,
            "low": trial.speedup_low,
            "high": trial.speedup_high,
            "latency_ms": trial.latency_ms,
            "build_seconds": trial.build_seconds,
            "evidence": list(trial.evidence),
        }
        for trial in graph.trials
    ]
    return {
        "chosen": graph.chosen,
        "trials": trials,
        "notes": list(graph.notes),
        "seconds": time.perf_counter() - start,
        "weights_mb": sum(one.nbytes for one in module.parameters()) >> 20,
        "peak_mb": torch.cuda.max_memory_allocated() >> 20,
    }


def _child(work: Work, folder: Path) -> None:
    import torch

    try:
        row = _row(work, folder)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the row
        row = {"chosen": None, "trials": [], "failure": f"{type(error).__name__}: {str(error)[:400]}"}
    row |= {
        "model": work.model,
        "subject": work.subject,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "versions": _versions(),
    }
    (folder / f"{work.key.replace('/', '_')}.json").write_text(json.dumps(row))


def _versions() -> dict[str, str]:
    import importlib.metadata

    found = {}
    for name in ("torch", "triton", "timm", "transformers", "diffusers", "torchao", "onnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    names = ("tensorrt_rtx", "torch_tensorrt") if "tensorrt_rtx" in sys.modules else ("tensorrt", "torch_tensorrt")
    for name in names:
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "?"))
    return found


# ----------------------------------------------------------------------------------------------------- the parent


def _together(works: list[Work], folder: Path, end: float) -> list[dict[str, Any]]:
    """Make several rows at once: built together, measured one at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    names = {work: work.key.replace("/", "_") for work in works}
    running = {}
    for work in works:
        command = [sys.executable, "-m", "benchmarks.gpu", "--child", work.model, work.subject, str(folder)]
        with (folder / f"{names[work]}.log").open("w") as log:
            running[work] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    started, builds_until = time.time(), time.time() + min(_LONGEST_BUILD, 0.6 * (end - time.time()))
    while running and time.time() < end:
        running = {work: process for work, process in running.items() if process.poll() is None}
        waiting = [work for work in running if not (folder / f"{names[work]}.built").exists()]
        if not waiting or time.time() > builds_until:
            (folder / "go").touch()
        time.sleep(0.1)
    for process in running.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    rows = []
    for work, name in names.items():
        path = folder / f"{name}.json"
        if path.exists():
            rows.append(json.loads(path.read_text()))
        elif work not in running:
            text = (folder / f"{name}.log").read_text(errors="replace")[-300:]
            rows.append({"model": work.model, "subject": work.subject, "trials": [], "failure": f"it crashed: {text}"})
    print(f"{len(rows)} of {len(works)} rows in {time.time() - started:.0f} s", flush=True)
    return rows


def run(rows_file: Path, seconds: float, models: list[str], subjects: list[str], together: int) -> None:
    """Make the rows that are missing, until time is up: those of candidates model by model, then those of strategies.

    Args:
        rows_file: Where the rows are; written to after each step.
        seconds: Time for everything.
        models: Names of models.
        subjects: Names of candidates and strategies.
        together: Models whose candidates are built at once: each takes a few gigabytes of memory.
    """
    end = time.time() + seconds
    rows = json.loads(rows_file.read_text()) if rows_file.exists() else []
    done = {(row["model"], row["subject"]) for row in rows}
    base = Path(os.environ.get("TMPDIR", "/tmp"), "aitune-gpu-bench", str(os.getpid()))
    groups = [models[i : i + together] for i in range(0, len(models), together)]
    steps = [(group, [one for one in subjects if one not in STRATEGIES]) for group in groups]
    steps.append((models, [one for one in subjects if one in STRATEGIES]))
    for number, (group, wanted) in enumerate(steps):
        works = [Work(model, subject) for model in group for subject in wanted if (model, subject) not in done]
        left = end - time.time()
        if works and left > 30:
            rows += _together(works, base / str(number), time.time() + left)
            rows_file.write_text(json.dumps(rows, indent=1))


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, for each model, the row with the largest speedup among those that are right."""
    found: dict[str, Any] = {}
    for row in rows:
        trial = row["trials"][0] if row.get("trials") else None
        right = trial is not None and trial["verdict"] == "accepted" and row["subject"] not in STRATEGIES
        if right and trial["speedup"] > found.get(row["model"], (0, None))[0]:
            found[row["model"]] = trial["speedup"], row["subject"]
    return found


def geometric(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "SUBJECT", "FOLDER"))
    parser.add_argument("--rows", type=Path, default=RESULTS / "gpu.json")
    parser.add_argument("--seconds", type=float, default=550)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--subjects", nargs="*")
    parser.add_argument("--together", type=int, default=2, help="models whose candidates are built at once")
    parser.add_argument("--without", nargs="*", default=[], help="backends that strategies are not to try")
    parser.add_argument("--report", action="store_true", help="write the table of the rows beside them")
    arguments = parser.parse_args()
    if arguments.child:
        model, subject, folder = arguments.child
        _child(Work(model, subject), Path(folder))
    elif arguments.report:
        from benchmarks.gpu_report import write

        print(write(arguments.rows))
    else:
        from benchmarks.gpu_models import MODELS

        os.environ[_LEFT_OUT] = " ".join(arguments.without)
        subjects = arguments.subjects or [*candidates(), *STRATEGIES]
        run(arguments.rows, arguments.seconds, arguments.models or list(MODELS), subjects, arguments.together)


if __name__ == "__main__":
    main()
