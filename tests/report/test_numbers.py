"""Numbers are written with the digits that a reader needs and no more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.2e-5, "3.2e-05"), (1e-4, "1e-04"), (0.21, "0.21"), (0.03, "0.03"), (0, "0"), (1.0, "1"),
     (12345.0, "1.2e+04"), (float("inf"), "inf"), (float("nan"), "nan"), (None, "")],
)  # fmt: skip
def test_an_error_has_two_digits(value, text):
    assert numbers.error(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [(1.28, 1.25, 1.31, "1.28x [1.25, 1.31]"), (31.42, 30.9, 32.0, "31.4x [30.9, 32.0]"),
     (150.4, 149.6, 151.0, "150x [150, 151]"),
     (0.97, None, None, "0.97x"), (None, None, None, ""), (float("nan"), 1.0, 2.0, "nanx [1.00, 2.00]")],
)  # fmt: skip
def test_a_speedup_shows_its_interval_with_the_same_decimals(value, low, high, text):
    assert numbers.speedup(value, low, high) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.34, "12.3 ms"), (0.0834, "0.0834 ms"), (999.4, "999 ms"), (1240.0, "1.24 s"), (9.996, "10.0 ms"),
     (0, "0 ms"), (None, "")],
)  # fmt: skip
def test_a_latency_has_three_digits(value, text):
    assert numbers.milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.346, "0.35 s"), (4.12, "4.1 s"), (43.2, "43 s"), (99.9, "1 min 40 s"), (125, "2 min 5 s"),
     (3780, "1 h 3 min"), (math.inf, "inf s"), (None, "")],
)  # fmt: skip
def test_a_duration_is_in_the_unit_that_people_use(value, text):
    assert numbers.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(129e6, "129 MB"), (2.5e9, "2.50 GB"), (512, "512 B"), (-3e6, "-3.00 MB"), (None, "")]
)
def test_memory_is_in_decimal_units(value, text):
    assert numbers.memory(value) == text


@given(st.floats(0))
def test_no_number_is_too_long_for_its_column(value):
    texts = [
        write(value)
        for write in (numbers.error, numbers.ratio, numbers.milliseconds, numbers.seconds, numbers.throughput)
    ]
    assert max(map(len, texts)) <= 12


def test_one_thing_is_singular():
    assert [numbers.count(number, "module") for number in (0, 1, 2)] == ["0 modules", "1 module", "2 modules"]
