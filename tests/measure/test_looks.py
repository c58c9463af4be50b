"""The schedule of looks and the error that they share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.measure import ProfilingConfig, median_interval
from aitune.torch.measure.looks import Looks


def test_looks_double_up_to_the_most_pairs():
    assert Looks.of(ProfilingConfig(min_blocks=10, max_blocks=160)).blocks == (10, 20, 40, 80, 160)
    assert Looks.of(ProfilingConfig(min_blocks=10, max_blocks=50)).blocks == (10, 20, 40, 50)
    assert Looks.of(ProfilingConfig(min_blocks=30, max_blocks=30)).blocks == (30,)


@given(st.integers(1, 40), st.integers(40, 400), st.floats(0.6, 0.999))
def test_all_looks_together_spend_no_more_than_the_error(min_blocks, max_blocks, confidence):
    config = ProfilingConfig(min_blocks=min_blocks, max_blocks=max_blocks, confidence=confidence)
    looks = Looks.of(config)
    spent = 0.0
    for look, blocks in enumerate(looks.blocks):
        asked = looks.confidence(look, spent, last=blocks == max_blocks)
        spent += 1 - median_interval([1.0] * blocks, asked).confidence
        assert spent <= (look + 1) / len(looks.blocks) * looks.error + 1e-12


def test_a_look_that_turns_out_to_be_the_last_spends_what_is_left():
    looks = Looks.of(ProfilingConfig(confidence=0.99))
    assert 1 - looks.confidence(1, 0.002, last=True) == pytest.approx(0.008)
    assert 1 - looks.confidence(1, 0.002, last=False) == pytest.approx(0.002)
