"""The record of one benchmark: figures with their goals, and where and when they were measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aitune.torch.measure import median_interval

CONFIDENCE = 0.95
RESULTS = Path(__file__).parent / "results"
_LIBRARIES = (
    "aitune", "torch", "numpy", "onnx", "onnxscript", "onnxruntime", "openvino", "torchao", "transformers", "diffusers",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A median over blocks or pairs, with the interval that holds the true one at 95 %.

    Attributes:
        name: What was measured.
        unit: Of all the numbers.
        goal: What is promised, as an upper limit; None where nothing is.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    goal: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the goal is met: surely, surely not, or not to be told from this run."""
        if self.goal is None:
            return ""
        if self.high <= self.goal:
            return "met"
        return "missed" if self.low > self.goal else "open"


def figure(name: str, unit: str, values: Sequence[float], goal: float | None = None) -> Figure:
    """Summarise an odd number of values: then the median is one of them, and their sign is of no matter."""
    if len(values) % 2 == 0:
        raise ValueError(f"{name}: an odd number of values is needed, not {len(values)}")
    interval = median_interval(values, CONFIDENCE)
    return Figure(name, unit, interval.median, interval.low, interval.high, goal)


@dataclass(frozen=True)
class Record:
    """What one run of a benchmark found.

    Attributes:
        name: Of the benchmark, and of its file.
        figures: What was measured.
        facts: What else was seen, JSON values.
    """

    name: str
    figures: tuple[Figure, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        """Figures and facts as plain text."""
        width = max(len(each.name) for each in self.figures)
        lines = [f"{self.name:{width}}    median  95 % interval"]
        for each in self.figures:
            goal = "" if each.goal is None else f"  at most {each.goal:g}: {each.verdict}"
            interval = f"{each.low:.3f} to {each.high:.3f} {each.unit}"
            lines.append(f"{each.name:{width}}  {each.median:8.3f}  {interval}{goal}")
        lines += [f"{name}: {value}" for name, value in self.facts.items()]
        return "\n".join(lines)

    def write(self) -> Path:
        """Write the record with its date and machine; the record of an earlier run is replaced."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        figures = [asdict(each) | {"verdict": each.verdict} for each in self.figures]
        content = {"benchmark": self.name, **surroundings(), "figures": figures, "facts": self.facts}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
        return path


def surroundings() -> dict[str, Any]:
    """Return when, with what and where, as JSON values; libraries that are not installed are left out."""
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions},
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "load_average": os.getloadavg()[0],
        },
    }


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
