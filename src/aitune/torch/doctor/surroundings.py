"""Facts about machine and software, found without importing a vendor's library or initialising a device."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from aitune.torch.config import autowrapt_bootstrap
from aitune.torch.report import environment, numbers

__all__ = ["Accelerator", "accelerators", "compiler", "cpu_quota", "just_in_time", "machine", "software", "store"]

# Processor flags that decide how fast backends are, by the kernel's names; x86, then ARM.
_FLAGS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
    "amx_int8", "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip
_COMPILERS = ("g++", "clang++", "c++")
_SECONDS = 20.0
_ENTRY_POINTS = "aitune_enable_jit_tuning"


@dataclass(frozen=True)
class Accelerator:
    """A GPU as its driver describes it."""

    name: str
    driver: str
    memory: str


def accelerators() -> tuple[Accelerator, ...]:
    """Return the GPUs that NVIDIA's driver knows; asking torch would create a context on them."""
    found = []
    for line in _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"):
        name, driver, memory, *_ = [*(part.strip() for part in line.split(",")), "", ""]
        if driver:
            found.append(Accelerator(name, driver, memory))
    return tuple(found)


def compiler() -> str:
    """Return the first line that the C++ compiler says about itself, empty if there is none on the path."""
    for name in _COMPILERS:
        lines = _output(name, "--version")
        if lines:
            return lines[0]
    return ""


def machine(gpus: Iterable[Accelerator]) -> dict[str, str]:
    """Describe processor, memory and devices."""
    import psutil

    known = environment()
    memory = psutil.virtual_memory()
    facts = {
        "processor": known["cpu"],
        "instructions": " ".join(flag for flag in _FLAGS if flag in _cpu_flags()) or "unknown",
        "cores": known["cores"],
        "torch's threads": known["threads"],
        "memory": f"{numbers.memory(memory.available)} free of {numbers.memory(memory.total)}",
    }
    quota = cpu_quota()
    if quota is not None:
        facts["processor time"] = f"limited to {quota:g} cores"
    for index, gpu in enumerate(gpus):
        facts[f"cuda:{index}"] = f"{gpu.name}, {gpu.memory}, driver {gpu.driver}"
    return facts


def software() -> dict[str, str]:
    """Return versions by name: aitune, Python, torch, the system, the compiler, libraries of backends."""
    known = environment()
    hardware = ("cpu", "cores", "threads", "cuda")
    facts = {
        "aitune": known["aitune"],
        "python": known["python"],
        "torch": f"{known['torch']}, built for {'CUDA ' + torch.version.cuda if torch.version.cuda else 'the CPU'}",
        "system": known["platform"],
        "C++ compiler": compiler() or "none on the path",
    }
    return facts | {name: text for name, text in known.items() if name not in (*facts, *hardware, "platform")}


def store(folder: Path) -> dict[str, str]:
    """Say whether a folder can be written to, and how much room there is; it is not created."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return {
        "folder": str(folder) + ("" if there == folder else " (not there yet)"),
        "writable": "yes" if writable else f"no: {there} cannot be written to",
        "free": numbers.memory(shutil.disk_usage(there).free),
    }


def just_in_time() -> dict[str, str]:
    """Say whether a start of Python without a change of code would tune."""
    hook = any(importlib.metadata.entry_points(group=_ENTRY_POINTS))
    asked = _ENTRY_POINTS in autowrapt_bootstrap()
    return {
        "autowrapt": _version("autowrapt") or "not installed",
        "hook": "registered" if hook else f"no entry point {_ENTRY_POINTS}",
        "AUTOWRAPT_BOOTSTRAP": "names aitune" if asked else f"not set to {_ENTRY_POINTS}",
        "active": "yes" if hook and asked and _version("autowrapt") else "no",
    }


def cpu_quota() -> float | None:
    """Return how many cores' worth of time a container gives this process; None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None  # no container, or another system
    return None if limit == "max" else int(limit) / int(period)


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()  # not Linux
    flags = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in ("flags", "Features"))
    return set(next(flags, "").split())


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _output(program: str, *arguments: str) -> list[str]:
    """Return the lines that a program prints; none if it is missing, fails or takes too long."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
