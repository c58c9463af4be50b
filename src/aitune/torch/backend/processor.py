"""The processor that native code was compiled for, and whether this one can run it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Processor"]

_FLAGS = ("flags", "features")  # what x86 and ARM call them in /proc/cpuinfo


@dataclass(frozen=True)
class Processor:
    """What a processor can do.

    Attributes:
        machine: Its family, such as ``x86_64``.
        features: Its instruction set extensions; empty where the system does not tell.
        name: What tells processors apart where features are not known.
    """

    machine: str
    features: frozenset[str] = frozenset()
    name: str = ""

    @classmethod
    def here(cls) -> Processor:
        """Return the processor of this machine."""
        features: set[str] = set()
        try:
            with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    key, _, value = line.partition(":")
                    if key.strip().lower() in _FLAGS:
                        features.update(value.split())
                        break
        except OSError:
            pass
        return cls(platform.machine(), frozenset(features), "" if features else platform.processor())

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"machine": self.machine, "features": sorted(self.features), "name": self.name}

    def lacks(self, record: Any) -> str:
        """Return what this processor lacks to run code compiled for another; empty text if it lacks nothing.

        Args:
            record: What :meth:`record` returned for the other one; anything else counts as another processor.
        """
        if not isinstance(record, dict) or record.get("machine") != self.machine or record.get("name") != self.name:
            return "this is another kind"
        missing = sorted(set(map(str, record.get("features", ()))) - self.features)
        return f"this one lacks {', '.join(missing[:8])}" if missing else ""
