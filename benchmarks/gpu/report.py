"""The rows of the GPU benchmark as a page: what is measured, what was chosen, and what failed with its reason."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.candidates import STRATEGIES
from benchmarks.gpu.models import BESIDE

__all__ = ["behind", "geometric", "write"]

Row = dict[str, Any]

BEHIND = 0.98
HALF_WIDTH = 0.03
OF_BY_HAND = 0.97
_TESTS, _SECOND = "tests", "second-start:"


def write(rows_file: Path) -> Path:
    """Write the page beside the rows, and return its path."""
    rows = json.loads(rows_file.read_text())
    path = rows_file.with_suffix(".md")
    path.write_text("\n".join(_page(rows)) + "\n")
    return path


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else math.nan


def behind(ratio: Row) -> str:
    """Say whether a choice keeps up with a line: its speed over the line's, with an interval.

    Returns:
        ``"no"`` if it is at most 2 % behind, or not to be told from that in a narrow interval; ``"yes"`` if it is
        surely further behind, ``"open"`` if the interval is too wide to say.
    """
    low, high = ratio["low"], ratio["high"]
    narrow = low <= BEHIND <= high and (high - low) / 2 <= HALF_WIDTH
    if ratio["speedup"] >= BEHIND or narrow:
        return "no"
    return "yes" if high < BEHIND else "open"


def _page(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if row["model"] != _TESTS]
    second = [row for row in measured if row["subject"].startswith(_SECOND)]
    chosen = [row for row in measured if row["subject"] in STRATEGIES]
    candidates = [row for row in measured if row not in second and row not in chosen]
    dates = sorted(row["date"] for row in measured if "date" in row)
    versions = {name: version for row in measured for name, version in row.get("versions", {}).items()}
    devices = sorted({row["device"] for row in measured if "device" in row})
    lines = [
        "# Backends on a GPU",
        "",
        f"Measured {dates[0]} to {dates[-1]} on {', '.join(devices)} with",
        f"{', '.join(f'{name} {version}' for name, version in sorted(versions.items()))};",
        "written by `python -m benchmarks.gpu --report` from `gpu.json`. Random weights, one recorded call of each",
        "model, batch size fixed.",
        "",
        *_choices(chosen),
        *_second_starts(second),
        "## Single backends",
        "",
        "Every row is a tune of its own process with aitune's own check and comparison; speedup is over eager in the",
        "same process, with its 99 % interval. Candidates of a model were built at once, and measured one at a time.",
        "",
        "| model | backend | speedup | interval | ms | error | build s | peak MB (weights) | measured |",
        "|---|---|---|---|---|---|---|---|---|",
        *[_line(row) for row in candidates if _trial(row).get("verdict") == "accepted"],
        "",
        "## Not accepted",
        "",
        "| model | backend | verdict | reason | measured |",
        "|---|---|---|---|---|",
        *[_failure(row) for row in candidates if _trial(row).get("verdict") != "accepted"],
        "",
        *_tests([row for row in rows if row["model"] == _TESTS]),
    ]
    return lines[: -1 if lines[-1] == "" else None]


def _trial(row: Row) -> Row:
    found: Row = row["trials"][0] if row.get("trials") else {}
    return found


def _table(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _interval(figures: Row) -> str:
    return f"{figures['speedup']:.2f} [{figures['low']:.2f}, {figures['high']:.2f}]"


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
        row["date"][:10],
    ]
    return _table(cells)


def _failure(row: Row) -> str:
    trial = _trial(row)
    reason = _short(trial.get("reason") or row.get("failure", ""), 200)
    return _table([row["model"], row["subject"], trial.get("verdict", "failed"), reason, row.get("date", "")[:10]])


def _short(text: str, length: int) -> str:
    return " ".join(text.replace("|", "/").split())[:length]


def _choices(chosen: Sequence[Row]) -> list[str]:
    """Return the choices of the strategies, beside lines written by hand or beside their own trials."""
    raced = [row for row in chosen if _best_line(row) is not None]
    others = [row for row in chosen if _best_line(row) is None]
    return [*_raced(raced), *_unraced(others)]


def _raced(chosen: Sequence[Row]) -> list[str]:
    if not chosen:
        return []
    lines = [
        "## What the strategies chose, beside lines written by hand",
        "",
        "All default candidates in one process, and in the same process the lines that a user could have written by",
        "hand: calls of torch, TensorRT and Torch-TensorRT, nothing of aitune. Speedups are over eager; *ahead* races",
        "the tuned module against the best line head to head (99 % intervals), and *behind* says whether it is over",
        "2 % slower. A line by hand hands out one output buffer again and again; a tuned module returns copies.",
        "",
        "| model | strategy | chosen | speedup | best line by hand | its speedup | ahead | behind | tune s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in chosen:
        best = str(_best_line(row))
        ratio = row["ahead"][best]
        cells = [
            row["model"],
            row["subject"],
            f"`{row['chosen']}`",
            _interval(row),
            best,
            _interval(row["lines"][best]),
            _interval(ratio),
            behind(ratio),
            f"{row['seconds']:.0f}",
        ]
        lines.append(_table(cells))
    lines += ["", *[_means(strategy, chosen) for strategy in STRATEGIES], ""]
    failures = [(row["model"], name, line) for row in chosen for name, line in row["lines"].items()]
    refused = {(model, name, line["failure"]) for model, name, line in failures if "failure" in line}
    if refused:
        lines += ["Lines by hand that do not work:", ""]
        lines += [f"- {model}, {name}: {_short(failure, 160)}" for model, name, failure in sorted(refused)]
        lines.append("")
    return lines


def _unraced(chosen: Sequence[Row]) -> list[str]:
    if not chosen:
        return []
    lines = [
        "## What the strategies chose, beside their own trials",
        "",
        "All default candidates in one process, not raced against lines written by hand. Other models were built at",
        "the same time, so that eager, which waits for the host, is slower than alone: latencies tell more here.",
        "",
        "| model | strategy | chosen | its ms | quickest trial | its ms | tune s | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in chosen:
        accepted = [trial for trial in row["trials"] if trial["verdict"] == "accepted"]
        taken = next((trial for trial in accepted if trial["backend"] == row["chosen"]), None)
        top = min(accepted, key=lambda trial: float(trial["latency_ms"]), default=None)
        cells = [
            row["model"],
            row["subject"],
            f"`{row['chosen']}`" if row["chosen"] else _short(row.get("failure", ""), 80),
            f"{taken['latency_ms']:.3f}" if taken else "",
            f"`{top['backend']}`" if top else "",
            f"{top['latency_ms']:.3f}" if top else "",
            f"{row.get('seconds') or 0:.0f}",
            row["date"][:16].replace("T", " "),
        ]
        lines.append(_table(cells))
    return [*lines, ""]


def _best_line(row: Row) -> str | None:
    """Return the line that is quickest in a race with the tuned module."""
    raced = row.get("ahead", {})
    return min(raced, key=lambda name: raced[name]["speedup"], default=None)


def _means(strategy: str, chosen: Sequence[Row]) -> str:
    rows = [row for row in chosen if row["subject"] == strategy and row["model"] not in BESIDE]
    if not rows:
        return f"{strategy}: not measured."
    theirs = geometric([row["lines"][_best_line(row)]["speedup"] for row in rows])
    ahead = geometric([row["ahead"][_best_line(row)]["speedup"] for row in rows])
    return (
        f"{strategy}: geometric mean over eager of the best lines by hand {theirs:.2f} on the {len(rows)} models of the"
        f" reference set, of the choices {ahead * theirs:.2f}, {ahead:.2f} of it (goal {OF_BY_HAND}): measured head to"
        " head, since eager waits for a host that builds other models and takes other times from race to race."
    )


def _second_starts(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Second start of the same program",
        "",
        "Whole processes until their first answer, the tuned ones from the store; seconds more than eager's, with the",
        "smallest and the largest of the rounds. The goal is 2.",
        "",
        "| model | backend | eager s | tuned s | more s | of it the tune | recalled |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        more = row["more_seconds"]
        middle = [sorted(row[name])[len(row[name]) // 2] for name in ("eager_seconds", "tuned_seconds")]
        cells = [
            row["model"],
            row["subject"].removeprefix(_SECOND),
            *[f"{value:.2f}" for value in middle],
            f"{more['median']:.2f} ({more['low']:.2f} to {more['high']:.2f})",
            f"{row.get('tune_seconds', math.nan):.2f}",
            "yes" if row.get("recalled") else f"no: {_short(str(row.get('trials', row.get('failure'))), 120)}",
        ]
        lines.append(_table(cells))
    return [*lines, ""]


def _tests(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["## Tests", "", "| part | outcome | run |", "|---|---|---|"]
    for row in rows:
        outcome = row["outcome"] or f"ended with {row['rc']}"
        note = f": {row['note']}" if "note" in row else ""
        lines.append(_table([row["subject"], _short(outcome + note, 300), row.get("date", "")[:16].replace("T", " ")]))
    return lines
