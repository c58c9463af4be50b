"""Trials and timings as JSON, and back with every field checked."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any, cast, get_args

from aitune.torch.fields import Fields
from aitune.torch.measure import PairedTiming
from aitune.torch.measure.paired_timing import Basis, End, Outcome
from aitune.torch.trial import PRECISIONS, Precision, Trial, Verdict

__all__ = ["KEPT", "read_timing", "read_trial", "timing_record", "trial_record"]

KEPT = frozenset(
    {
        Verdict.accepted, Verdict.wrong, Verdict.unsupported, Verdict.build_failed, Verdict.crashed,
        Verdict.timed_out, Verdict.random,
    }
)  # fmt: skip
"""Verdicts that hold at another time as well (decision 22); the others belong to the moment or the machine's load."""

_NUMBERS = (
    "error", "error_bound", "speedup", "speedup_low", "speedup_high", "latency_ms", "throughput", "build_seconds",
)  # fmt: skip
_WORDS: dict[str, tuple[str, ...]] = {"basis": get_args(Basis), "outcome": get_args(Outcome), "ended": get_args(End)}
_WHOLE = ("blocks", "fewest_blocks")


def trial_record(trial: Trial) -> dict[str, Any]:
    """Return a trial as a JSON object; the path of its log is left out, which belongs to one process."""
    record = {name: _finite(value) for name, value in asdict(trial).items() if name != "log_path"}
    return {**record, "verdict": trial.verdict.value, "evidence": list(trial.evidence)}


def read_trial(record: Fields) -> Trial:
    """Read a trial.

    Raises:
        DocumentError: If a field is missing or of another kind.
    """
    numbers: dict[str, Any] = {name: _read_number(record, name) for name in _NUMBERS}
    return Trial(
        backend=record.text("backend"),
        verdict=Verdict(record.word("verdict", [verdict.value for verdict in Verdict])),
        reason=record.text("reason"),
        precision=cast("Precision | None", record.optional("precision", lambda name: record.word(name, PRECISIONS))),
        batch_size=record.optional("batch_size", record.integer),
        memory_bytes=record.optional("memory_bytes", record.integer),
        evidence=record.texts("evidence"),
        **numbers,
    )


def timing_record(timing: PairedTiming | None) -> dict[str, Any] | None:
    """Return a timing as a JSON object; None stays None."""
    return None if timing is None else {name: _finite(value) for name, value in asdict(timing).items()}


def read_timing(record: Fields) -> PairedTiming:
    """Read a timing.

    Raises:
        DocumentError: If a field is missing or of another kind.
    """
    values: dict[str, Any] = {}
    for item in fields(PairedTiming):
        if item.name in _WORDS:
            values[item.name] = record.word(item.name, _WORDS[item.name])
        elif item.name in _WHOLE:
            values[item.name] = record.integer(item.name)
        elif item.name == "busy":
            values[item.name] = record.boolean(item.name)
        else:
            values[item.name] = _read_number(record, item.name)
            if values[item.name] is None:
                raise record.error(item.name, "must be a number")
    return PairedTiming(**values)


def _finite(value: Any) -> Any:
    """Return what JSON can hold: infinite and missing numbers become words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_number(record: Fields, name: str) -> float | None:
    if name in record and record.raw(name) in ("inf", "-inf", "nan"):
        return float(record.text(name))
    return record.optional(name, record.number)
