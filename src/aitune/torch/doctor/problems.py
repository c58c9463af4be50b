"""Combinations that are known to be bad, and what to do about each."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from aitune.torch.doctor.diagnosis import Problem
from aitune.torch.doctor.surroundings import Accelerator, compiler, cpu_quota, store

__all__ = ["problems"]

_ENOUGH_BYTES = 1_000_000_000
_OLDEST_TORCH = (2, 8)
# Distributions that bring the same package and overwrite each other's files.
_ONE_OF = (
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    ("openvino", "openvino-nightly"),
)


def problems(gpus: Sequence[Accelerator], cache_dir: Path) -> tuple[Problem, ...]:
    """Return what should be looked at.

    Args:
        gpus: What the driver knows.
        cache_dir: Where aitune writes.
    """
    return (*_libraries(), *_torch(gpus), *_threads(), *_store(cache_dir))


def _libraries() -> Iterator[Problem]:
    for names in _ONE_OF:
        there = [name for name in names if _installed(name)]
        if len(there) > 1:
            yield Problem(
                f"{' and '.join(there)} are both installed and overwrite each other's files",
                f"pip uninstall {' '.join(there)}, then install the one that is wanted",
            )
    if _installed("torchao") and _installed("transformers"):
        yield Problem(
            "with torchao installed, importing transformers takes 2 to 5 s longer",
            "pip uninstall torchao where TorchAOBackend is not used",
        )
    if not compiler():
        yield Problem(
            "there is no C++ compiler on the path, without which the Inductor backends and TorchAO cannot build",
            "install g++ or clang++",
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        yield Problem(
            f"Python's headers are not in {headers}: torch.compile cannot build for the CPU",
            "install them, such as python3-dev on Debian and Ubuntu",
        )


def _torch(gpus: Sequence[Accelerator]) -> Iterator[Problem]:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST_TORCH:
        yield Problem(f"torch {torch.__version__} is too old", "install torch 2.8 or newer")
    if gpus and not torch.version.cuda:
        yield Problem(f"{gpus[0].name} is not used: this build of torch has no CUDA", "install a CUDA build of torch")
    if torch.version.cuda and not gpus and not torch.version.hip:
        yield Problem(
            "torch is built for CUDA, and the driver shows no GPU",
            "check nvidia-smi, or take a CPU build of torch, which is smaller",
        )


def _threads() -> Iterator[Problem]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    limit = usable if quota is None else min(usable, max(int(quota), 1))
    if torch.get_num_threads() > limit:
        yield Problem(
            f"torch uses {torch.get_num_threads()} threads on {limit} cores, which slows every backend down",
            f"torch.set_num_threads({limit}) before tuning",
        )


def _store(folder: Path) -> Iterator[Problem]:
    facts = store(folder)
    if facts["writable"] != "yes":
        yield Problem(f"the store is not writable ({facts['writable']})", "set AITUNE_CACHE_DIR to a folder that is")
        return
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if shutil.disk_usage(there).free < _ENOUGH_BYTES:
        yield Problem(
            f"only {facts['free']} are free where aitune writes", "make room, or set AITUNE_CACHE_DIR to another disk"
        )


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
