"""``jit_config``: checked at the assignment, defaults from the environment, honoured when set late."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import aitune.torch as ait
from aitune.torch.jit.config import JITConfig, JITMode

GOOD = {
    "mode": [(JITMode.INSPECT, JITMode.INSPECT), ("tune_deferred", JITMode.TUNE_DEFERRED)],
    "min_samples": [(3, 3)],
    "max_depth_level": [(0, 0), (2, 2)],
    "min_parameters": [(0, 0), (1000, 1000)],
    "detect_graph_breaks": [(True, True)],
    "skip_modules": [(["BatchNorm2d", "LayerNorm"], ("BatchNorm2d", "LayerNorm")), ((), ())],
    "patch_exclude": [(("my_package.MyCustomLayer",), ("my_package.MyCustomLayer",))],
    "cache_dir": [("/somewhere", Path("/somewhere")), (Path("/x"), Path("/x"))],
    "strategy": [(None, None)],
    "device": [(None, None), ("cuda", torch.device("cuda")), (torch.device("cpu"), torch.device("cpu"))],
    "batch_axis_required": [(True, True), (False, False)],
    "dry_run": [(True, True)],
    "raise_failures": [(True, True)],
    "summary": [(None, None), (False, False)],
}
BAD = {
    "mode": ["sometimes", 3],
    "min_samples": [0, True, 1.5],
    "max_depth_level": [-1],
    "min_parameters": [-1, "many"],
    "detect_graph_breaks": [2],
    "skip_modules": [[torch.nn.Linear], 3],
    "patch_exclude": [3],
    "cache_dir": [3],
    "strategy": [3, "NoStrategy", "FirstWinsStrategy(NoBackend)", ait.FirstWinsStrategy],
    "device": ["gpu", True],
    "batch_axis_required": [3],
    "dry_run": ["perhaps"],
    "raise_failures": [3],
    "summary": [3],
}
IN_THE_ENVIRONMENT = {
    "mode": ("TUNE_DEFERRED", JITMode.TUNE_DEFERRED),
    "min_samples": ("4", 4),
    "max_depth_level": ("0", 0),
    "min_parameters": ("10", 10),
    "detect_graph_breaks": ("1", True),
    "skip_modules": ("BatchNorm2d, LayerNorm", ("BatchNorm2d", "LayerNorm")),
    "patch_exclude": ("a.B,c", ("a.B", "c")),
    "cache_dir": ("/somewhere", Path("/somewhere")),
    "device": ("cuda", torch.device("cuda")),
    "batch_axis_required": ("yes", True),
    "dry_run": ("on", True),
    "raise_failures": ("true", True),
    "summary": ("0", False),
}


def test_every_field_is_in_the_lists():
    assert set(JITConfig.FIELDS) == set(GOOD) == set(BAD) == {*IN_THE_ENVIRONMENT, "strategy"}


@pytest.mark.parametrize("name", GOOD)
def test_good_values_are_kept(name):
    settings = JITConfig({})
    for value, kept in GOOD[name]:
        setattr(settings, name, value)
        assert getattr(settings, name) == kept


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused_with_what_is_allowed(name):
    settings = JITConfig({})
    for value in BAD[name]:
        with pytest.raises(ValueError, match=f"{name} must be"):
            setattr(settings, name, value)


def test_an_unknown_field_is_an_attribute_error():
    with pytest.raises(AttributeError, match="min_samples"):
        JITConfig({}).min_sampels = 3


@pytest.mark.parametrize("name", IN_THE_ENVIRONMENT)
def test_a_default_comes_from_the_environment(name):
    text, value = IN_THE_ENVIRONMENT[name]
    assert getattr(JITConfig({f"AITUNE_JIT_{name.upper()}": text}), name) == value


def test_a_bad_variable_is_one_warning_and_the_default(caplog):
    with caplog.at_level(logging.WARNING, logger="aitune"):
        settings = JITConfig({"AITUNE_JIT_MIN_SAMPLES": "none of them"})
    assert settings.min_samples == 1
    (record,) = caplog.records
    assert "AITUNE_JIT_MIN_SAMPLES" in record.getMessage()
    assert "an integer of at least 1" in record.getMessage()


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("FirstWinsStrategy", "FirstWinsStrategy()"),
        ("MaxThroughputStrategy()", "MaxThroughputStrategy()"),
        ("OneBackendStrategy(TorchEagerBackend)", "OneBackendStrategy(backend=TorchEagerBackend())"),
        (
            "FirstWinsStrategy(TorchEagerBackend, TorchInductorJitBackend)",
            "FirstWinsStrategy(backends=[TorchEagerBackend(), TorchInductorJitBackend()])",
        ),
    ],
)
def test_a_strategy_is_written_as_text(text, described):
    assert JITConfig({"AITUNE_JIT_STRATEGY": text}).strategy.describe() == described


def test_the_batch_axis_is_required_by_default_only_with_several_samples():
    settings = JITConfig({})
    assert settings.batch_axis_required is False
    settings.min_samples = 2
    assert settings.batch_axis_required is True
    settings.batch_axis_required = False
    assert settings.batch_axis_required is False
    settings.min_samples = 1
    settings.batch_axis_required = True
    assert settings.batch_axis_required is True


def test_files_go_below_the_cache_of_aitune_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(ait.config, "cache_dir", tmp_path)
    assert JITConfig({}).cache_dir == tmp_path / "jit"


def test_both_configurations_are_public():
    from aitune.torch.config import config

    assert ait.config is config
    assert isinstance(ait.jit_config, JITConfig)
