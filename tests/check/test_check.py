"""What a user may set about the value check."""

from __future__ import annotations

import dataclasses
import math

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check import Bounds, Check
from aitune.torch.trial import PRECISIONS


def test_the_default_sets_nothing() -> None:
    assert dataclasses.asdict(Check()) == {
        "max_error": None,
        "metric": None,
        "budget": None,
        "higher_is_better": True,
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_error": 0.1, "metric": abs, "budget": 0.1}, "exclude each other"),
        ({"metric": abs}, "needs a budget"),
        ({"budget": 0.1}, "needs a metric"),
        ({"metric": 3, "budget": 0.1}, "must be a function"),
        ({"max_error": -0.1}, "max_error must be a finite number"),
        ({"max_error": math.nan}, "max_error must be a finite number"),
        ({"max_error": True}, "max_error must be a finite number"),
        ({"max_error": "small"}, "max_error must be a finite number"),
        ({"metric": abs, "budget": math.inf}, "budget must be a finite number"),
        ({"metric": abs, "budget": 0.1, "higher_is_better": 1}, "True or False"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words) -> None:
    with pytest.raises(AITuneUserInputError, match=words):
        Check(**options)
    with pytest.raises(ValueError, match=words):
        Check(**options)


def test_every_precision_has_a_bound() -> None:
    assert {name: Bounds.of(name).floor for name in PRECISIONS} == {
        "float64": 1e-10,
        "float32": 1e-4,
        "tf32": 1e-2,
        "float16": 1e-2,
        "bfloat16": 3e-2,
        "int8": 1e-1,
        "float8": 1e-1,
        "int4": 2e-1,
        "float4": 2e-1,
    }
    with pytest.raises(AITuneUserInputError, match="precision must be one of"):
        Bounds.of("float3")
