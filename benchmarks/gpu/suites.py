"""The tests for a CUDA device, in parts that run side by side, and those that need the device for themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["ALONE", "SUITES", "command", "outcome"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"

_ALONE = ("test_containment.py", "test_memory.py")  # they measure the memory of the whole device
_CLASS = re.compile(r"^class (Test\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^def (test_\w+)", re.MULTILINE)


def _suites() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(FOLDER.glob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        parts = _FUNCTION.findall(text) if file.name in _ALONE else _CLASS.findall(text)
        for name in parts:
            found[f"{file.name}::{name}"] = [f"{file}::{name}"]
        if not parts:
            found[file.name] = [str(file)]
    for file in sorted(ROOT.glob("tests/*/test_gpu.py")):
        found[str(file.relative_to(ROOT))] = [str(file)]
    return found


SUITES = _suites()
"""What each part runs, by its name."""

ALONE = frozenset(name for name in SUITES if name.partition("::")[0] in _ALONE)
"""Parts that need the device for themselves."""


def command(suite: str) -> list[str]:
    """Return how a part is run."""
    shown = ["-s"] if suite in ALONE else []
    return [sys.executable, "-m", "pytest", "-q", *shown, "-p", "no:cacheprovider", "--timeout=400", *SUITES[suite]]


def outcome(process: subprocess.Popen[bytes], text: str) -> dict[str, Any]:
    """Return what came of a part."""
    lines = [line for line in text.splitlines() if line.strip()]
    summary = next(
        (line.strip("= ") for line in reversed(lines) if re.search(r"\d+ (passed|failed|skipped|error)", line)), ""
    )
    failed = [line[:400] for line in lines if line.startswith(("FAILED", "ERROR"))]
    skipped = [line[:300] for line in lines if line.startswith("SKIPPED")]
    return {"rc": process.returncode, "outcome": summary, "failed": failed, "skipped": skipped}
