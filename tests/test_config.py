"""Settings are checked at the assignment, and read their defaults from the environment."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest

import aitune.torch as ait
from aitune.torch.config import Config, without_effect

GOOD = {
    "cache_dir": ["/somewhere", Path("/somewhere")],
    "min_num_samples": [1, 7],
    "max_num_samples_stored": [1, 7],
    "device_after_tuning": [None, "cpu", "meta"],
    "tuning_data_output_path": [None, "/somewhere/record.json"],
    "strict_mode": [True, False],
    "enable_transformers_integration": [True, False],
    "enable_diffusers_integration": [True, False],
    "isolation": ["process", "none"],
    "backend_time_limit": [1, 0.5, float("inf")],
    "backend_memory_limit": [None, 1],
    "max_parallel_builds": [1, 2],
    "reuse_store": [True, False],
    "store_size_limit": [None, 1],
    "cache_min_free_bytes": [None, 1],
    "grad_policy": ["engine", "eager"],
}
BAD = {
    "cache_dir": ["~nobody-has-this-name/cache", 3, ""],
    "min_num_samples": [0, True, 1.5, "many"],
    "max_num_samples_stored": [0],
    "device_after_tuning": ["cuda", 3],
    "tuning_data_output_path": [3],
    "strict_mode": [1, None, "maybe"],
    "enable_transformers_integration": [0],
    "enable_diffusers_integration": ["sometimes"],
    "isolation": ["thread", None],
    "backend_time_limit": [0, -1, True, "long", float("nan"), 10**400],
    "backend_memory_limit": [0],
    "max_parallel_builds": [0],
    "reuse_store": [2],
    "store_size_limit": [0, "much"],
    "cache_min_free_bytes": [0, True],
    "grad_policy": ["auto", None],
}


def test_every_field_is_in_both_lists():
    assert set(Config.FIELDS) == set(GOOD) == set(BAD)


@pytest.mark.parametrize("name", GOOD)
def test_good_values_are_kept(name):
    settings = Config({})
    for value in GOOD[name]:
        setattr(settings, name, value)
        assert getattr(settings, name) == (Path(value) if isinstance(value, str) and "/" in value else value)


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused_with_what_is_allowed(name):
    settings = Config({})
    before = getattr(settings, name)
    for value in BAD[name]:
        with pytest.raises(ValueError, match=f"Config.{name} must be "):
            setattr(settings, name, value)
    assert getattr(settings, name) == before


@pytest.mark.parametrize("name", [name for name in GOOD if Config.FIELDS[name].variable])
def test_the_environment_gives_the_default(name):
    value = GOOD[name][-1]
    variable = Config.FIELDS[name].variable
    assert str(getattr(Config({variable: str(value)}), name)) == str(value)


def test_a_bad_variable_is_one_warning_and_the_default(caplog):
    settings = Config({"AITUNE_MIN_NUM_SAMPLES": "many"})
    assert settings.min_num_samples == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "AITUNE_MIN_NUM_SAMPLES" in caplog.text
    assert "an integer of at least 1" in caplog.text


def test_who_has_no_home_has_a_folder_of_temporary_files(monkeypatch):
    def unknown(*_, **__):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_dir", unknown)
    folder = Config({}).cache_dir
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder.name.startswith("aitune")


def test_an_unknown_field_is_an_attribute_error_that_lists_the_known():
    settings = Config({})
    for act in (
        lambda: settings.unknown,
        lambda: setattr(settings, "unknown", 1),
        lambda: delattr(settings, "unknown"),
    ):
        with pytest.raises(AttributeError, match="grad_policy"):
            act()


def test_deleting_a_field_goes_back_to_its_default():
    settings = Config({})
    settings.strict_mode = False
    del settings.strict_mode
    assert settings.strict_mode is True


def test_every_field_and_its_variable_are_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name, field in Config.FIELDS.items():
        assert f"`{name}`" in page
        assert field.variable is None or f"`{field.variable}`" in page


def test_the_object_and_its_module_are_the_same():
    from aitune.torch.config import config

    assert ait.config is config
    assert ait.aitune_cache_dir() == config.cache_dir


def test_fields_that_change_nothing_yet_are_said_to():
    settings = Config({})
    assert without_effect(settings) == ()
    settings.enable_diffusers_integration = True
    assert without_effect(settings) == ("enable_diffusers_integration",)
