"""Scenario 36 with whole tunes: a disk that is full, read-only or noexec costs the store, said once, and no more."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess

import pytest
import torch

import aitune.torch as ait
from aitune.torch.backend import ONNXRuntimeBackend

pytest.importorskip("onnxruntime")


class Wide(torch.nn.Module):
    """Its engine takes more room than the small disk has."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 40_000), torch.nn.ReLU(), torch.nn.Linear(40_000, 4))

    def forward(self, x):
        return self.layers(x)


def tune(folder, monkeypatch, **options):
    """Tune with the cache there; returns the model and the result of its graph."""
    monkeypatch.setattr(ait.config, "cache_dir", folder)
    monkeypatch.setattr(ait.config, "reuse_store", True)
    torch.manual_seed(0)
    strategy = ait.FirstWinsStrategy(backends=[ONNXRuntimeBackend()])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    model = ait.Module(Wide().eval(), "wide", strategy)
    (module,) = ait.tune(model, list(torch.randn(4, 16)), **options).modules.values()
    return model, module.graphs[0]


def about_the_store(caplog):
    return [
        one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and "store" in one.getMessage()
    ]


@pytest.fixture
def isolated(monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", "process")


def assert_tuned(model, graph):
    assert graph.chosen == "ONNXRuntimeBackend()", [trial.reason for trial in graph.trials]
    x = torch.randn(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.layers(x), rtol=1e-4, atol=1e-5)
    assert sum(ait.handle(model).stats.engine_calls.values()) == 1


@pytest.mark.parametrize(
    ("options", "recalled"),
    [
        pytest.param("size=2m", False, id="full"),
        pytest.param("size=64m,ro", False, id="read-only", marks=pytest.mark.slow),
        pytest.param("size=64m,noexec", True, id="noexec", marks=pytest.mark.slow),
    ],
)
def test_scenario_36_a_tune_goes_on_without_the_store(
    mounted, options, recalled, tmp_path, monkeypatch, caplog, isolated
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with mounted(tmp_path / "disk", options) as folder:
        assert_tuned(*tune(folder, monkeypatch))
        warned = about_the_store(caplog)
        assert len(warned) == (0 if recalled else 1), warned
        model, graph = tune(folder, monkeypatch)
        assert_tuned(model, graph)
        assert graph.recalled is recalled


def test_scenario_36_a_disk_with_no_room_at_all(mounted, tmp_path, monkeypatch, caplog, isolated):
    with mounted(tmp_path / "disk", "size=1m") as folder:
        with contextlib.suppress(OSError), (folder / "others").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert os.statvfs(folder).f_bavail == 0
        assert_tuned(*tune(folder / "cache", monkeypatch))
        assert len(about_the_store(caplog)) == 1


def test_clearing_what_cannot_be_cleared_is_said_and_the_tune_goes_on(mounted, tmp_path, monkeypatch, caplog):
    with mounted(tmp_path / "disk", "size=64m") as folder:
        tune(folder, monkeypatch)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert_tuned(*tune(folder, monkeypatch, clear_cache=True))
        assert any("cannot be cleared" in text for text in about_the_store(caplog))


def test_a_link_in_the_place_of_the_store_is_named_and_left_alone(tmp_path, monkeypatch, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "store").symlink_to(tmp_path / "elsewhere")
    assert_tuned(*tune(tmp_path / "cache", monkeypatch, clear_cache=True))
    assert any("is a link; set AITUNE_CACHE_DIR" in text for text in about_the_store(caplog))
    assert list((tmp_path / "elsewhere").iterdir()) == []
