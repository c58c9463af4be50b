"""What beside a module decides what an engine does: libraries, device, driver, processor, settings of torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import shutil
from pathlib import Path

import torch

import aitune
from aitune.torch.backend.circumstance import cxx

__all__ = ["LIBRARIES", "surroundings"]

LIBRARIES = (
    "numpy", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "openvino", "torchao",
    "triton", "tensorrt", "tensorrt-rtx", "torch-tensorrt", "torch-tensorrt-rtx", "nvidia-modelopt",
)  # fmt: skip
"""Distributions whose version can change what a backend builds, by their name on the package index."""

_OWN_ROOMS = ("backend", "export", "graph")


def surroundings(device: torch.device) -> dict[str, str]:
    """Describe everything that an engine for a device depends on beside its module, as words by name.

    Args:
        device: Where the module is. A CUDA device is asked for its properties, which the module's being there has
            initialised already.
    """
    facts = {
        "aitune": f"{aitune.__version__} {_own_code()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "git": str(torch.version.git_version or ""),
        "system": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip(),
        **_libraries(),
        "compiler": _compiler(),
        "device": device.type,
        **(_cuda(device) if device.type == "cuda" else {}),
        **_processor(),
        **_settings(),
    }
    return {name: text for name, text in facts.items() if text}


def _compiler() -> str:
    """Return where the compiler of generated code is: without one, candidates fail that another time do not."""
    return shutil.which(cxx()) or ""


@functools.cache
def _own_code() -> str:
    """Return a digest of the code of ours that makes engines, for those who run it from a working copy."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parent.parent
    for room in _OWN_ROOMS:
        for file in sorted((root / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _libraries() -> dict[str, str]:
    versions = {name: _version(name) for name in LIBRARIES}
    return {name: version for name, version in versions.items() if version}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cuda(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device name": properties.name,
        "device memory": str(properties.total_memory >> 30),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda or torch.version.hip or ""),
        "cudnn": str(torch.backends.cudnn.version() or ""),  # type: ignore[no-untyped-call]
        "driver": _driver(),
    }


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " ".join(text.splitlines()[0].split())


@functools.cache
def _processor() -> dict[str, str]:
    """Return model and instruction sets of the processor; both can differ between machines of one cluster."""
    model, flags = platform.processor(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "cpu model") and value.strip():
                model = value.strip()
            if key.strip().lower() in ("flags", "features") and value.strip():
                flags = " ".join(sorted(value.split()))
                break
    except OSError:
        pass  # not Linux
    return {"processor": model or platform.machine(), "processor flags": flags}


def _settings() -> dict[str, str]:
    """Return the process's settings of torch that change what is computed or compiled."""
    return {
        "threads": str(torch.get_num_threads()),
        "default dtype": str(torch.get_default_dtype()),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "autocast": _autocast(),
    }


def _autocast() -> str:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds)
