"""The table of all rows: text, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu.by_hand import PICKS

__all__ = ["summary", "table", "write"]

GEOMETRIC_GOAL = 0.97  # of the automatic choice's mean over that of the best picks by hand

Row = dict[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return geometric means by batch size, and how many rows meet the goal."""
    measured = [row for row in rows if "verdict" in row and row["automatic"]["speedup"] is not None]
    means = {}
    for batch in sorted({row["batch"] for row in measured}):
        own = [row for row in measured if row["batch"] == batch]
        automatic, best = (mean(row[key]["speedup"] for row in own) for key in ("automatic", "best"))
        raced = [row["ratio"]["speedup"] for row in own if row["ratio"]["speedup"] is not None]
        head_to_head = mean(raced) if raced else automatic / best
        means[str(batch)] = {
            "models": len(own),
            "automatic": automatic,
            "best by hand": best,
            "automatic over best by hand": automatic / best,
            "head to head": head_to_head,
            "goal": GEOMETRIC_GOAL,
            "met": head_to_head >= GEOMETRIC_GOAL,
        }
    verdicts = [row.get("verdict", "failed") for row in rows]
    counts = {name: verdicts.count(name) for name in ("met", "open", "missed", "failed")}
    return {"geometric means by batch size": means, "rows": counts}


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    found = list(values)
    return math.exp(math.fsum(map(math.log, found)) / len(found))


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, one line a row, and the means below it."""
    head = ["model", "batch", "eager, ms", *PICKS, "automatic", "chosen", "automatic / best by hand", "verdict"]
    lines = [head, ["---"] * len(head), *(cells(row) for row in rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    found = summary(rows)
    for batch, means in found["geometric means by batch size"].items():
        text += (
            f"\n\nBatch {batch}, geometric means over models ({means['models']}): automatic {means['automatic']:.2f},"
            f" best by hand {means['best by hand']:.2f}, each over eager in a race of its own, in which eager takes"
            f" other times: ratio {means['automatic over best by hand']:.3f}."
            f" Raced with each other: {means['head to head']:.3f}"
            f" (goal: at least {means['goal']}: {'met' if means['met'] else 'missed'})."
        )
    counts = ", ".join(f"{count} {name}" for name, count in found["rows"].items() if count)
    return f"{text}\n\nRows: {counts or 'none'}.\n"


def cells(row: Row) -> list[str]:
    if "verdict" not in row:
        return [
            row["model"],
            str(row["batch"]),
            "",
            *[""] * len(PICKS),
            "",
            row["failed"].replace("|", "/"),
            "",
            "failed",
        ]
    hand = [pick_cell(row["by_hand"].get(name, {})) for name in PICKS]
    automatic, ratio = row["automatic"], row["ratio"]
    interval = f" [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio["low"] and ratio["high"] else ""
    return [
        row["model"],
        str(row["batch"]),
        f"{row['eager_ms']:.3g}",
        *hand,
        f"**{shown(automatic['speedup'])}**",
        automatic["chosen"],
        f"{shown(ratio['speedup'], 3)}{interval} ({ratio['against']})",
        row["verdict"],
    ]


def pick_cell(found: Row) -> str:
    if "speedup" in found:
        return shown(found["speedup"])
    return "wrong" if "error" in found else "-"


def shown(value: float | None, digits: int = 2) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write ``cpu.json`` and ``cpu.md``; those of an earlier run are replaced."""
    content = {"benchmark": "cpu", "summary": summary(rows), "rows": list(rows)}
    replace(folder / "cpu.json", json.dumps(content, indent=2) + "\n")
    page = (
        f"# The automatic choice against every backend picked by hand\n\n{ABOUT}\n\n{machines(rows)}\n\n{table(rows)}"
    )
    replace(folder / "cpu.md", page)
    return folder / "cpu.md"


ABOUT = """Speedups over eager in float32, one process a row, measured in alternating blocks in random order. By hand
means the library's own API at exactly this batch size; automatic means `ait.tune` at the same size with the
defaults of MinLatencyStrategy at batch size 1 and of MaxThroughputStrategy above (at a single size both do
the same). The ratio of the automatic choice to the best by hand is measured directly, with the 99 %
interval; where several picks are within 3 % of the best one, the least favourable of them counts. *met*:
not more than 2 % behind, or the interval includes 0.98 and its half-width is at most 3 %; *missed*: surely
more than 2 % behind; *open*: the interval is too wide to tell. Calls under 0.3 ms are judged after
subtracting the dispatch cost."""


def machines(rows: Sequence[Row]) -> str:
    """Describe where and when the rows were measured; one line where all are the same."""
    lines = unique(rows, lambda row: f"{row['machine']['cpu']}, {row['machine']['cores']} cores: {versions(row)}")
    dates = sorted(row["date"] for row in rows if "date" in row)
    return "\n".join([*lines, f"\nMeasured from {dates[0]} to {dates[-1]}." if dates else ""])


def versions(row: Row) -> str:
    return ", ".join(f"{name} {version}" for name, version in row["versions"].items())


def unique(rows: Sequence[Row], describe: Callable[[Row], str]) -> list[str]:
    return list(dict.fromkeys(describe(row) for row in rows if "machine" in row))


def replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
