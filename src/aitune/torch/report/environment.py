"""Where a tune ran: versions and hardware, as words. Nothing is imported or initialised to find out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from aitune import __version__

__all__ = ["environment"]

# Distributions whose version can change what a backend builds, by their name on the package index.
_LIBRARIES = (
    "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "openvino", "torchao",
    "triton", "tensorrt", "tensorrt-rtx", "torch-tensorrt", "torch-tensorrt-rtx", "nvidia-modelopt",
    "transformers", "diffusers",
)  # fmt: skip


def environment(devices: Iterable[torch.device | str] = ()) -> dict[str, str]:
    """Describe the machine and the libraries.

    Args:
        devices: Where the tuned modules are. An accelerator is named only if torch already uses it: asking
            for its name would otherwise create a context on it.

    Returns:
        Words by name, in the order in which a report shows them: versions, machine, devices, then one entry
        for each installed library of a backend.
    """
    facts = {
        "aitune": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "threads": str(torch.get_num_threads()),
    }
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
    for device in dict.fromkeys(str(device) for device in devices):
        if torch.device(device).type != "cpu":
            facts[device] = _device_name(torch.device(device))
    facts.update(_libraries())
    return facts


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"


def _cores() -> str:
    import psutil

    present = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    physical = psutil.cpu_count(logical=False)
    text = str(usable) if usable == present else f"{usable} of {present}"
    return f"{text} ({physical} physical)" if physical and physical != present else text


def _device_name(device: torch.device) -> str:
    if device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        facts = torch.cuda.get_device_properties(device)
        return f"{facts.name}, {facts.total_memory / 1e9:.0f} GB"
    return device.type


def _libraries() -> dict[str, str]:
    versions = {name: _version(name) for name in _LIBRARIES}
    return {name: version for name, version in versions.items() if version}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
