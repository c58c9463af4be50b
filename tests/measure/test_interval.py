"""The interval of a median from order statistics."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.measure import median_interval
from aitune.torch.measure.interval import fewest_values

ratios = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60)
confidences = st.floats(0.5, 0.9999)


@given(ratios, confidences)
def test_it_holds_the_median_and_its_confidence_is_enough(values, confidence):
    interval = median_interval(values, confidence)
    assert interval.low <= interval.median <= interval.high
    assert interval.confidence >= confidence
    assert min(values) <= interval.median <= max(values)


@given(ratios, confidences, confidences)
def test_more_confidence_is_never_narrower(values, one, other):
    narrow, wide = (median_interval(values, confidence) for confidence in sorted((one, other)))
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


@given(ratios, confidences, st.data())
def test_raising_a_value_never_lowers_an_end(values, confidence, data):
    index = data.draw(st.integers(0, len(values) - 1))
    raised = [value * 2 if place == index else value for place, value in enumerate(values)]
    before, after = median_interval(values, confidence), median_interval(raised, confidence)
    assert after.low >= before.low
    assert after.median >= before.median * (1 - 1e-12)
    assert after.high >= before.high


@given(ratios, confidences, st.randoms(use_true_random=False))
def test_the_order_of_the_values_does_not_matter(values, confidence, shuffler):
    shuffled = list(values)
    shuffler.shuffle(shuffled)
    assert median_interval(shuffled, confidence) == median_interval(values, confidence)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=30), confidences)
def test_inverting_the_ratios_inverts_the_interval(values, confidence):
    there = median_interval(values, confidence)
    back = median_interval([1 / value for value in values], confidence)
    assert back.median == pytest.approx(1 / there.median)
    assert back.high == (math.inf if there.low == 0 else pytest.approx(1 / there.low))


def test_the_ranks_are_those_of_the_published_tables():
    # 10 values: the 2nd and 9th smallest hold the median with 97.9 %, the 1st and 10th with 99.8 %.
    values = [float(value) for value in range(1, 11)]
    assert median_interval(values, 0.95).low == 2.0
    assert median_interval(values, 0.95).high == 9.0
    assert median_interval(values, 0.95).confidence == pytest.approx(1 - 22 / 1024)
    assert median_interval(values, 0.99).confidence == pytest.approx(1 - 2 / 1024)
    # 50 values at 95 %: the 18th and the 33rd.
    many = median_interval([float(value) for value in range(1, 51)], 0.95)
    assert (many.low, many.high) == (18.0, 33.0)


def test_it_misses_the_true_median_as_rarely_as_it_says():
    source = random.Random(0)
    missed = 0
    for _ in range(2000):
        # Skewed noise with a long tail, true median 1.
        interval = median_interval([math.exp(source.gauss(0, 1) ** 3) for _ in range(25)], 0.9)
        missed += not interval.low <= 1 <= interval.high
    assert 0.02 < missed / 2000 < 0.1


def test_too_few_values_leave_it_open():
    interval = median_interval([1.5] * 7, 0.99)
    assert (interval.low, interval.high, interval.confidence) == (0.0, math.inf, 1.0)
    assert median_interval([1.5] * 8, 0.99).low == 1.5


@pytest.mark.parametrize(("confidence", "fewest"), [(0.5, 2), (0.9, 5), (0.95, 6), (0.99, 8), (0.999, 11)])
def test_the_fewest_values_are_the_fewest_with_an_interval(confidence, fewest):
    assert fewest_values(confidence) == fewest
    assert median_interval([1.0] * fewest, confidence).low == 1.0
    assert median_interval([1.0] * (fewest - 1), confidence).low == 0.0


@pytest.mark.parametrize(("values", "confidence"), [([], 0.99), ([1.0], 1.0), ([1.0], 0.2)])
def test_what_makes_no_sense_is_refused(values, confidence):
    with pytest.raises(ValueError, match=r"confidence|at least one"):
        median_interval(values, confidence)
