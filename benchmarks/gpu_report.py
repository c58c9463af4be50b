"""The rows of the GPU benchmark as a page: one table, what was chosen, and what failed with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import STRATEGIES, best, geometric

Row = dict[str, Any]


def write(rows_file: Path) -> Path:
    """Write the page beside the rows, and return its path."""
    rows = json.loads(rows_file.read_text())
    path = rows_file.with_suffix(".md")
    path.write_text("\n".join(_page(rows)) + "\n")
    return path


def _page(rows: list[Row]) -> list[str]:
    by_hand = [row for row in rows if row["subject"] not in STRATEGIES]
    chosen = [row for row in rows if row["subject"] in STRATEGIES]
    dates = sorted(row["date"] for row in rows)
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    lines = [
        "# Backends on a GPU",
        "",
        f"Measured {dates[0]} to {dates[-1]} on {', '.join(sorted({row['device'] for row in rows}))} with",
        f"{', '.join(f'{name} {version}' for name, version in sorted(versions.items()))};",
        "written by `python -m benchmarks.gpu --report` from `gpu.json`. Random weights, one recorded call of each",
        "model, batch size fixed. Every row is a tune of its own process with aitune's own check and comparison;",
        "speedup is over eager in the same process, with its 99 % interval. Candidates of a model were built at once,",
        "and measured one at a time.",
        "",
        "| model | backend | speedup | interval | ms | error | build s | peak MB (weights) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in by_hand if _trial(row).get("verdict") == "accepted"]
    lines += ["", "## Not accepted", "", "| model | backend | verdict | reason |", "|---|---|---|---|"]
    lines += [_failure(row) for row in by_hand if _trial(row).get("verdict") != "accepted"]
    if chosen:
        lines += ["", *_choices(chosen, best(by_hand))]
    return lines


def _trial(row: Row) -> Row:
    found: Row = row["trials"][0] if row["trials"] else {}
    return found


def _line(row: Row) -> str:
    trial = _trial(row)
    cells = [
        row["model"],
        row["subject"],
        f"{trial['speedup']:.2f}",
        f"{trial['low']:.2f} to {trial['high']:.2f}",
        f"{trial['latency_ms']:.3f}",
        f"{trial['error']:.0e}",
        f"{trial['build_seconds']:.1f}",
        f"{row['peak_mb']} ({row['weights_mb']})",
    ]
    return f"| {' | '.join(cells)} |"


def _failure(row: Row) -> str:
    trial = _trial(row)
    reason = " ".join((trial.get("reason") or row.get("failure", "")).replace("|", "/").split())[:160]
    return f"| {row['model']} | {row['subject']} | {trial.get('verdict', 'failed')} | {reason} |"


def _choices(chosen: list[Row], by_hand: dict[str, Any]) -> list[str]:
    lines = [
        "## What the strategies chose",
        "",
        "All default candidates in one process. The best line is the best accepted trial of the same tune.",
        "",
        "| model | strategy | chosen | its speedup | best line | seconds |",
        "|---|---|---|---|---|---|",
    ]
    mine, theirs = [], []
    for row in chosen:
        accepted = [trial for trial in row["trials"] if trial["verdict"] == "accepted"]
        taken = next((trial for trial in accepted if trial["backend"] == row["chosen"]), None)
        top = max((trial["speedup"] for trial in accepted), default=1.0)
        speedup = taken["speedup"] if taken else 1.0
        mine.append(speedup)
        theirs.append(by_hand.get(row["model"], (top, ""))[0])
        what = row["chosen"] or row.get("failure", "")[:80]
        cells = [
            row["model"],
            row["subject"],
            f"`{what}`",
            f"{speedup:.2f}",
            f"{top:.2f}",
            f"{row.get('seconds', 0):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    means = f"Geometric mean of the choices {geometric(mine):.2f}, of the best rows by hand {geometric(theirs):.2f}."
    return [*lines, "", means]
