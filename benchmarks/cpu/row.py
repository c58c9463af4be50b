"""One row: a model at a batch size, tuned by aitune and picked by hand, compared in this process in blocks in turn.

The entry point of the row's own process: ``python -m benchmarks.cpu.row MODEL BATCH FILE``.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.measure import PairedTiming, compare
from benchmarks import dispatch
from benchmarks.cpu.by_hand import PICKS, Inputs, pick, relative_error
from benchmarks.cpu.models import MODELS
from benchmarks.record import surroundings

__all__ = ["BEHIND", "HALF_WIDTH", "QUICK_CALL_MS", "measure_row", "verdict"]

BEHIND = 0.02
"""How far the automatic choice may be behind the best pick by hand."""

HALF_WIDTH = 0.03
"""Half of the width of the ratio's interval, up to which one that includes ``1 - BEHIND`` is good enough."""

QUICK_CALL_MS = 0.3
"""Calls shorter than this are judged after subtracting the dispatch cost."""

CLOSE = 0.03  # picks this close to the best one are raced against the automatic choice as well
WRONG = 1e-2  # a pick with a larger error computes something else, or in a lower precision, and does not count
STRATEGIES: Mapping[str, Callable[..., ait.TuneStrategy]] = {
    "MinLatency": ait.MinLatencyStrategy,
    "MaxThroughput": ait.MaxThroughputStrategy,
}
TABLE = ait.ProfilingConfig(settle_seconds=5.0, max_seconds=12.0)
JUDGE = ait.ProfilingConfig(settle_seconds=20.0, max_seconds=40.0)
BRIEF = ait.ProfilingConfig(settle_seconds=1.0, max_seconds=4.0)


def measure_row(model_name: str, batch: int, strategy: str, *, quick: bool = False) -> dict[str, Any]:
    """Tune, pick by hand, compare; returns the row as JSON values."""
    reference = MODELS[model_name]
    inputs = seeded(reference.inputs, batch)
    row: dict[str, Any] = {"model": model_name, "batch": batch, "strategy": strategy, "quick": quick, **surroundings()}
    automatic, row["automatic"] = tuned(reference.model(), inputs, strategy, quick)
    bare = reference.model()
    ways: dict[str, Callable[..., Any]] = {"eager": bare}
    row["by_hand"] = {}
    with tempfile.TemporaryDirectory(prefix="aitune-benchmark-") as folder:
        for name in PICKS:
            try:
                built = pick(name, model_name, bare, inputs, Path(folder))
            except Exception as error:  # noqa: BLE001 - libraries raise anything; a failed pick is a cell of the table
                row["by_hand"][name] = {"failed": f"{type(error).__name__}: {error}"[:400]}
                continue
            row["by_hand"][name] = {"seconds": round(built.seconds, 1), "error": built.error}
            if built.error <= WRONG:
                ways[name] = built.call
            print(f"  {name}: ready after {built.seconds:.0f} s, error {built.error:.1e}", flush=True)
        compared(row, automatic, ways, inputs, BRIEF if quick else None)
    return row


def seeded(make: Callable[[int], Inputs], batch: int) -> Inputs:
    torch.manual_seed(batch)
    return make(batch)


def tuned(model: nn.Module, inputs: Inputs, strategy: str, quick: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Tune with the defaults of a strategy, at this batch size; returns the module and what came of it."""
    settings = STRATEGIES[strategy](profiling_config=BRIEF if quick else None)
    ait.Module(model, "model", settings)
    with torch.no_grad():
        truth = model(*inputs)
    start = time.perf_counter()
    batches = torch.utils.data.DataLoader([inputs, inputs], batch_size=None)
    result = ait.tune(ait.handle(model), batches, device="cpu", progress=False)
    seconds = time.perf_counter() - start
    (graph,) = result.modules["model"].graphs
    # Not the whole trial: a benchmark's record says what was tried and what came of it.
    trials = [
        {key: getattr(trial, key) for key in ("backend", "reason", "speedup", "build_seconds")}
        | {"verdict": str(trial.verdict)}
        for trial in graph.trials
    ]
    with torch.no_grad():
        error = relative_error(model(*inputs), truth)
    print(f"  automatic: {graph.chosen} after {seconds:.0f} s, error {error:.1e}", flush=True)
    found = {"chosen": graph.chosen, "seconds": round(seconds, 1), "error": error, "trials": trials}
    return model, found | {"put_back": result.modules["model"].put_back}


def compared(
    row: dict[str, Any],
    automatic: nn.Module,
    ways: Mapping[str, Callable[..., Any]],
    inputs: Inputs,
    config: ait.ProfilingConfig | None,
) -> None:
    """Fill in the figures: everything against eager, then the automatic choice against the best pick by hand."""
    table, judge = config or TABLE, config or JUDGE

    def race(one: Callable[..., Any], other: Callable[..., Any], how: ait.ProfilingConfig, gain: float) -> PairedTiming:
        with torch.no_grad():
            return compare(lambda: one(*inputs), lambda: other(*inputs), config=how, min_gain=gain)

    speedups = {"eager": 1.0}
    for name, call in ways.items():
        if name != "eager":
            timing = race(call, ways["eager"], table, 0.0)
            row["by_hand"][name] |= figures(timing)
            print(f"  {name}: {timing.speedup:.2f} [{timing.low:.2f}, {timing.high:.2f}]", flush=True)
            if timing.blocks >= timing.fewest_blocks:
                speedups[name] = timing.speedup
    against_eager = race(automatic, ways["eager"], table, 0.0)
    row["automatic"] |= figures(against_eager)
    row["eager_ms"] = against_eager.baseline_seconds * 1e3
    best = max(speedups.values())
    rivals = [name for name, speedup in speedups.items() if speedup >= best * (1 - CLOSE)]
    races = {name: race(automatic, ways[name], judge, -BEHIND) for name in rivals}
    worst = min(rivals, key=lambda name: races[name].speedup)
    row["best"] = {"name": max(speedups, key=lambda name: speedups[name]), "speedup": best}
    row["dispatch_us"] = dispatch_cost() if races[worst].candidate_seconds * 1e3 < QUICK_CALL_MS else None
    row["ratio"] = ratio(races[worst], worst, row["dispatch_us"])
    row["verdict"] = verdict(row["ratio"])
    print(f"  automatic over {worst}: {row['ratio']}: {row['verdict']}", flush=True)


def figures(timing: PairedTiming) -> dict[str, Any]:
    """Return the figures as JSON values; the speedup is None where the time was too short for an interval."""
    if timing.blocks < timing.fewest_blocks:
        return {"speedup": None, "low": None, "high": None, "ms": timing.candidate_seconds * 1e3, "busy": timing.busy}
    finite = [value if math.isfinite(value) else None for value in (timing.speedup, timing.low, timing.high)]
    return dict(zip(("speedup", "low", "high"), finite, strict=True)) | {
        "ms": timing.candidate_seconds * 1e3,
        "busy": timing.busy,
    }


def ratio(timing: PairedTiming, against: str, dispatch_us: float | None) -> dict[str, Any]:
    """Return the speed of the automatic choice over that of a pick, without the dispatch cost where that counts."""
    without = timing.candidate_seconds - (dispatch_us or 0.0) * 1e-6
    factor = timing.candidate_seconds / without if without > 0 else 1.0
    found = figures(timing)
    scaled = {key: None if found[key] is None else found[key] * factor for key in ("speedup", "low", "high")}
    return {"against": against, **scaled, "pairs": timing.blocks}


def verdict(found: Mapping[str, Any]) -> str:
    """Judge a ratio: ``met`` if it is surely not more than 2 % behind, or that is within a narrow interval.

    ``missed`` if it is surely more than 2 % behind; ``open`` if the interval is too wide to tell.
    """
    low, high = found["low"], found["high"]
    if low is None or high is None:
        return "open"
    if low >= 1 - BEHIND:
        return "met"
    if high < 1 - BEHIND:
        return "missed"
    return "met" if (high - low) / 2 <= HALF_WIDTH else "open"


def dispatch_cost() -> float:
    """Measure what a tuned module adds to a call of one tensor here, in µs: the median of blocks in turn."""
    bare, net = dispatch.OneTensor(8).eval(), dispatch.OneTensor(8).eval()
    dispatch.tune(net, dispatch.one_tensor)
    arguments = (torch.randn(2, 16),)
    with torch.no_grad():
        times = dispatch.interleaved(
            {"bare": bare, "tuned": net}, arguments, dispatch.QUICK_BLOCKS, dispatch.QUICK_CALLS
        )
    added = sorted(tuned - base for tuned, base in zip(times["tuned"], times["bare"], strict=True))
    return max(round(added[len(added) // 2], 2), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    row = measure_row(arguments.model, arguments.batch, arguments.strategy, quick=arguments.quick)
    temporary = arguments.file.with_suffix(".tmp")
    temporary.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    temporary.replace(arguments.file)


if __name__ == "__main__":
    main()
