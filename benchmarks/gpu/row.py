"""One row, made in a process of its own: ``python -m benchmarks.gpu.row MODEL SUBJECT FOLDER``.

A candidate is built, checked and measured by a tune of its own. A strategy is tuned with its default candidates, and
then raced against the lines that a user could have written by hand, in the same process.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import aitune.torch as ait
from aitune.torch.backend.registry import default_backends
from aitune.torch.measure import PairedTiming, ProfilingConfig, Stopwatch, compare
from benchmarks.gpu.by_hand import LINES, error_of
from benchmarks.gpu.candidates import BOTH, STRATEGIES, Work, candidates
from benchmarks.gpu.models import MODELS, WITHOUT_TENSORRT, Call
from benchmarks.gpu.turn import Turn, alone

__all__ = ["LEFT_OUT", "main", "surroundings"]

LEFT_OUT = "AITUNE_GPU_BENCHMARK_WITHOUT"
_RIGHT = 3e-2
_RACE = ProfilingConfig(max_seconds=8.0, max_blocks=80)
_BEHIND = -0.02
_KNOWN = "not tried: TensorRT for RTX lacks kernels for it on this device, as the rows of single backends say"
Row = dict[str, Any]


def main() -> None:
    model, subject, folder = sys.argv[1:]
    work, place = Work(model, subject), Path(folder)
    # Each row has a process of its own already, and is measured anew.
    ait.config.isolation = "none"
    ait.config.reuse_store = False
    try:
        if subject == BOTH:
            _strategy_rows(work, place)
        else:
            _write(_candidate_row(work, place), work, place)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the row
        failure = {"chosen": None, "trials": [], "failure": f"{type(error).__name__}: {str(error)[:400]}"}
        for one in work.rows():
            if not one.file(place).exists():
                _write(failure, one, place)


def _write(row: Row, work: Work, folder: Path) -> None:
    named = {"model": work.model, "subject": work.subject, **surroundings(), **row}
    part = work.file(folder).with_suffix(".part")
    part.write_text(json.dumps(named))
    part.replace(work.file(folder))


def surroundings() -> Row:
    """Return when and where a row was made."""
    versions = {}
    for name in ("torch", "triton", "timm", "transformers", "diffusers", "torchao", "onnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    for name in ("tensorrt_rtx" if "tensorrt_rtx" in sys.modules else "tensorrt", "torch_tensorrt"):
        if name in sys.modules:
            versions[name] = str(getattr(sys.modules[name], "__version__", "?"))
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": date, "device": torch.cuda.get_device_name(), "versions": versions}


def _candidate_row(work: Work, folder: Path) -> Row:
    torch.manual_seed(0)
    module, args, kwargs = MODELS[work.model]()
    strategy = ait.OneBackendStrategy(candidates()[work.subject]()).enable_performance_validation(False)
    return _tuned(work, folder, (module, args, kwargs), strategy, wait=True)


def _tuned(work: Work, folder: Path, call: Call, strategy: ait.TuneStrategy, *, wait: bool) -> Row:
    module, args, kwargs = call
    handle = ait.Module(module, work.model, strategy.enable_find_max_batch_size(False))
    handle.enable_recording()
    with torch.no_grad():
        module(*args, **kwargs)
    turn = Turn(folder, work.name, wait=wait)
    start = time.perf_counter()
    try:
        result = ait.tune(module, progress=turn)
    finally:
        turn.close()
    (found,) = result.modules.values()  # under a name of its own, where another module took the model's
    graph = found.graphs[0]
    return {
        "chosen": graph.chosen,
        "trials": [_trial(one) for one in graph.trials],
        "notes": [*graph.notes, *result.notes],
        "seconds": time.perf_counter() - start,
        "weights_mb": sum(one.nbytes for one in module.parameters()) >> 20,
        "peak_mb": torch.cuda.max_memory_allocated() >> 20,
    }


def _trial(trial: Any) -> Row:
    return {
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


def _strategy_rows(work: Work, folder: Path) -> None:
    """Measure what can be had by hand, then what each strategy chooses, and race the two."""
    torch.manual_seed(0)
    bare, args, kwargs = MODELS[work.model]()
    modules = [copy.deepcopy(bare) for _ in STRATEGIES]
    calls = _made_by_hand(work, (bare, args, kwargs), folder / work.name)
    with alone(folder), torch.no_grad():
        wanted = bare(*args, **kwargs)
        lines = {name: _line(call, bare, args, kwargs, wanted) for name, call in calls.items()}
    right = sorted((name for name in lines if "ms" in lines[name]), key=lambda name: lines[name]["ms"])
    for one, module in zip(work.rows(), modules, strict=True):
        strategy = getattr(ait, one.subject)(_listed(one))
        row = {**_tuned(one, folder, (module, args, kwargs), strategy, wait=False), "lines": lines}
        _write({**row, "partial": True}, one, folder)
        with alone(folder), torch.no_grad():
            row |= _figures(_raced(module, bare, args, kwargs))
            row["ahead"] = {
                name: _figures(_raced(module, calls[name], args, kwargs, min_gain=_BEHIND)) for name in right[:2]
            }
        _write(row, one, folder)


def _listed(work: Work) -> list[Any]:
    """Return the default candidates of a strategy, without those that are known to fail on the model."""
    left_out = os.environ.get(LEFT_OUT, "").split()
    listed = [one for one in default_backends(work.subject, torch.device("cuda")) if one.name not in left_out]
    return [one for one in listed if "TensorRT" not in one.name or work.model not in WITHOUT_TENSORRT]


def _made_by_hand(work: Work, call: Call, folder: Path) -> dict[str, Callable[..., Any] | str]:
    """Return the call of each line, or why there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        return {
            name: _made(make, call, folder) if "TensorRT" not in name or work.model not in WITHOUT_TENSORRT else _KNOWN
            for name, make in LINES.items()
        }


def _made(make: Any, call: Call, folder: Path) -> Callable[..., Any] | str:
    try:
        made: Callable[..., Any] = make(*call, folder)
    except Exception as error:  # noqa: BLE001 - libraries raise anything
        return f"{type(error).__name__}: {str(error)[:300]}"
    return made


def _line(line: Any, bare: Any, args: Any, kwargs: Any, wanted: Any) -> Row:
    if isinstance(line, str):
        return {"failure": line}
    try:
        error = error_of(line(*args, **kwargs), wanted)
        if not error <= _RIGHT:
            return {"failure": f"wrong: a relative error of {error:.2g}", "error": error}
        return {"error": error, **_figures(_raced(line, bare, args, kwargs))}
    except Exception as error:  # noqa: BLE001 - as above
        return {"failure": f"{type(error).__name__}: {str(error)[:300]}"}


def _raced(one: Any, other: Any, args: Any, kwargs: Any, min_gain: float = 0.01) -> PairedTiming:
    return compare(
        lambda: one(*args, **kwargs),
        lambda: other(*args, **kwargs),
        stopwatch=Stopwatch(synchronize=torch.cuda.synchronize),
        config=_RACE,
        min_gain=min_gain,
    )


def _figures(timing: PairedTiming) -> Row:
    return {
        "speedup": timing.speedup,
        "low": timing.low,
        "high": timing.high,
        "ms": timing.candidate_seconds * 1e3,
        "other_ms": timing.baseline_seconds * 1e3,
    }


if __name__ == "__main__":
    main()
