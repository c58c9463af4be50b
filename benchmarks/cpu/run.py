"""All rows one after the other, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cpu.models import MODELS
from benchmarks.cpu.table import table, write
from benchmarks.record import RESULTS, surroundings

__all__ = ["main"]

ROW_SECONDS = 900
QUICK_MODELS = ("mlp", "minilm", "resnet18")
STRATEGY = {True: "MinLatency", False: "MaxThroughput"}  # by whether the batch size is 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows asked for and write the table; returns how many are surely behind or failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cpu", description=__doc__)
    parser.add_argument("--models", default=None, help=f"comma-separated, of {', '.join(MODELS)}")
    parser.add_argument("--batch", default=None, help="comma-separated batch sizes; 1,8 by default")
    parser.add_argument("--resume", action="store_true", help="keep rows that are there already")
    parser.add_argument(
        "--quick", action="store_true", help="three models at batch size 1, measured briefly; writes no record"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table of the rows there")
    chosen = parser.parse_args(arguments)
    models = chosen.models.split(",") if chosen.models else list(QUICK_MODELS if chosen.quick else MODELS)
    unknown = sorted(set(models) - set(MODELS))
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    batches = [int(size) for size in (chosen.batch or ("1" if chosen.quick else "1,8")).split(",")]
    with ExitStack() as stack:
        folder = RESULTS / "cpu"
        if chosen.quick:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aitune-benchmark-")))
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [(model, batch) for batch in batches for model in models]
        rows = measured(wanted, folder, chosen)
        print(f"\n{table(rows)}")
        if not chosen.quick:
            print(f"written to {write(everything(folder), RESULTS)}")
        return sum(row.get("verdict", "failed") in ("missed", "failed") for row in rows)


def measured(wanted: Sequence[tuple[str, int]], folder: Path, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each row that is not there; returns them in order."""
    rows = []
    start = time.monotonic()
    for index, (model, batch) in enumerate(wanted):
        file = folder / f"{model}-batch{batch}.json"
        there = file.exists() and (chosen.resume or chosen.table)
        minutes = (time.monotonic() - start) / 60
        said = "is there already" if there else f"after {minutes:.1f} min"
        print(f"[{index + 1} of {len(wanted)}] {model}, batch {batch}: {said}", flush=True)
        if not there and not chosen.table:
            file.unlink(missing_ok=True)
            run_row(model, batch, file, chosen.quick)
        found = file if file.exists() else file.with_suffix(".failed.json")
        if found.exists():
            rows.append(json.loads(found.read_text(encoding="utf-8")))
    return rows


def run_row(model: str, batch: int, file: Path, quick: bool) -> None:
    """Measure a row in a process of its own; where that fails, the row's file says how.

    A failed row is measured again by the next run, also by one that resumes.
    """
    command = [sys.executable, "-m", "benchmarks.cpu.row", model, str(batch), STRATEGY[batch == 1], str(file)]
    try:
        # What it logs to stderr (exporters are talkative) goes to a file beside the row, for when it fails.
        # An empty store: what an earlier run kept would be taken over untried.
        with (
            tempfile.TemporaryDirectory(prefix="aitune-benchmark-") as store,
            file.with_suffix(".log").open("w", encoding="utf-8") as log,
        ):
            environment = {**os.environ, "AITUNE_CACHE_DIR": store}
            options = ["--quick"] if quick else []
            done = subprocess.run([*command, *options], stderr=log, env=environment, timeout=ROW_SECONDS, check=False)
        failed = "" if done.returncode == 0 else f"its process ended with {done.returncode}; see the log beside the row"
    except subprocess.TimeoutExpired:
        failed = f"it took more than {ROW_SECONDS} s"
    if failed:
        print(f"  failed: {failed}", flush=True)
        row = {"model": model, "batch": batch, "failed": failed, **surroundings()}
        file.with_suffix(".failed.json").write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    else:
        file.with_suffix(".log").unlink()
        file.with_suffix(".failed.json").unlink(missing_ok=True)


def everything(folder: Path) -> list[dict[str, Any]]:
    """Return all rows of the folder, by batch size and then in the order of the reference set."""
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    known = [row for row in rows if row["model"] in MODELS]
    return sorted(known, key=lambda row: (row["batch"], list(MODELS).index(row["model"])))
