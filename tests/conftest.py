"""What every test gets: seeds, a store of its own, and torch's global state as it found it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

# Before any import that might ask the hub: models come from installed packages alone.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import numpy as np
import pytest
import torch

SEED = 20

# No deadline: the first call of an operator may load a library, and machines are shared.
hypothesis.settings.register_profile("short", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("full", max_examples=1000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="full counts of long tests, as `make test-all` uses")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("full" if config.getoption("--full") else "short")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """Choose a repetition count: ``count(short, full)``."""
    return lambda short, full: full if request.config.getoption("--full") else short


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test, and the processes it starts, an empty store of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AITUNE_CACHE_DIR", str(folder))
    monkeypatch.setenv("AITUNE_JIT_CACHE_DIR", str(folder / "jit"))
    # The environment is read when the configuration is first imported, maybe in an earlier test.
    module = sys.modules.get("aitune.torch.config")
    if module is not None:
        monkeypatch.setattr(module.config, "cache_dir", folder)
    return folder


@pytest.fixture(autouse=True)
def isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build in this process and anew, which is quicker than a worker a test; tests about workers ask for one."""
    from aitune.torch.config import config

    monkeypatch.setattr(config, "isolation", "none")
    monkeypatch.setattr(config, "reuse_store", False)


# Reader and writer of each process-wide setting of torch that a test could leave behind.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # None rather than "cpu": a device set by name keeps a dispatch mode active.
    "default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "autocast on cpu": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda enabled: torch.set_autocast_enabled("cpu", enabled),
    ),
}


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


@pytest.fixture(autouse=True)
def torch_state() -> Iterator[None]:
    """Seed the test, and fail it if it leaves a setting of torch changed; no later test sees the change."""
    settings = _settings()
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    yield
    changed = _changes(settings, _settings())
    for name, (read, write) in _SETTINGS.items():
        if read() != settings[name]:
            write(settings[name])
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    assert not changed, f"the test left torch's global state changed: {', '.join(changed)}"


@pytest.fixture
def unchanged_torch_state() -> Callable[[], AbstractContextManager[None]]:
    """Context in which neither a setting nor a random number generator may move.

    For what aitune promises about its own calls; a test itself may draw random numbers.
    """

    @contextlib.contextmanager
    def watch() -> Iterator[None]:
        settings = _settings()
        python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        yield
        assert not (changes := _changes(settings, _settings())), changes
        assert random.getstate() == python, "Python's random generator moved"
        np.testing.assert_equal(np.random.get_state(), numpy, "numpy's random generator moved")
        assert torch.equal(torch.get_rng_state(), cpu), "torch's random generator moved"

    return watch


@pytest.fixture
def mounted() -> Callable[[Path, str], AbstractContextManager[Path]]:
    """``with mounted(folder, options) as folder:`` - a file system of its own, skipped where that is not permitted."""

    @contextlib.contextmanager
    def mount(folder: Path, options: str) -> Iterator[Path]:
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    return mount
