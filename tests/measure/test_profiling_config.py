"""The settings of a measurement say what they allow."""

from __future__ import annotations

import dataclasses

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.measure import ProfilingConfig


def test_the_defaults_are_what_the_guarantees_state():
    config = ProfilingConfig()
    assert (config.block_calls, config.block_seconds, config.idle_seconds) == (20, 0.02, 0.003)
    assert config.dropped_calls >= 1
    assert config.confidence == 0.99


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("block_calls", 0, "an integer of at least 1"),
        ("block_calls", 1.5, "an integer"),
        ("block_calls", True, "an integer"),
        ("block_seconds", 0.0, "above 0"),
        ("block_seconds", "fast", "a finite number"),
        ("block_seconds", float("nan"), "a finite number"),
        ("idle_seconds", -0.001, "at least 0"),
        ("dropped_seconds", -1, "at least 0"),
        ("dropped_calls", 0, "at least 1"),
        ("quick_seconds", 0, "above 0"),
        ("batch_seconds", 1.0, "at most block_seconds"),
        ("min_blocks", 1000, "at most max_blocks"),
        ("max_blocks", 0, "at least 1"),
        ("max_seconds", float("inf"), "a finite number"),
        ("confidence", 1.0, "below 1"),
        ("confidence", 0.3, "at least 0.5"),
        ("seed", None, "an integer"),
    ],
)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ValueError, match=f"ProfilingConfig.{name} must be .*{allowed}") as caught:
        ProfilingConfig(**{name: value})
    assert isinstance(caught.value, AITuneUserInputError)


def test_too_few_pairs_for_the_confidence_are_refused():
    with pytest.raises(ValueError, match="at least 8"):
        ProfilingConfig(min_blocks=7, max_blocks=7)
    assert ProfilingConfig(min_blocks=8, max_blocks=8).max_blocks == 8


def test_it_cannot_be_changed_but_copied_with_changes():
    config = ProfilingConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    assert dataclasses.replace(config, seed=1).seed == 1
