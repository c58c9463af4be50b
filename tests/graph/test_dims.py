"""Dimensions: declared ones are validated, inferred ones follow the sizes seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.graph.dims import BatchDim, DynamicDim, infer_dims


@pytest.mark.parametrize(
    ("low", "high", "opt"),
    [
        (0, 4, None),
        (4, 4, None),
        (5, 4, None),
        (1, 4, 5),
        (2, 4, 1),
        (True, 4, None),
        (1.0, 4, None),
        (1, 4, 2.0),
    ],
)
def test_a_range_that_is_none_is_refused(low, high, opt):
    with pytest.raises(AITuneUserInputError, match="batch"):
        BatchDim("batch", low, high, opt)


@pytest.mark.parametrize("name", ["", "two words", 3, None])
def test_a_name_that_is_no_identifier_is_refused(name):
    with pytest.raises(ValueError, match="identifier"):
        DynamicDim(name, 1, 2)


def test_a_batch_dim_is_a_dynamic_dim():
    assert isinstance(BatchDim("batch", 1, 8), DynamicDim)


def test_an_axis_proportional_to_the_batch_size_is_a_batch_dimension():
    calls = [[(1, 3), (2, 5)], [(4, 3), (8, 5)]]
    x, twice = infer_dims(calls, [1, 4])
    assert x == (BatchDim("batch0", 1, 4), 3)
    assert twice == (BatchDim("batch1", 2, 8), 5)


def test_axes_that_were_always_equal_share_one_dimension():
    calls = [[(1, 7), (1, 7)], [(2, 9), (2, 9)], [(2, 7), (2, 7)]]
    ids, mask = infer_dims(calls, [1, 2, 2])
    assert ids == mask == (BatchDim("batch0", 1, 2), DynamicDim("dim0", 7, 9))


def test_an_axis_that_varies_otherwise_is_no_batch_dimension():
    ((length,),) = infer_dims([[(5,)], [(9,)]], [1, 4])
    assert length == DynamicDim("dim0", 5, 9)
    assert not isinstance(length, BatchDim)


def test_without_known_batch_sizes_nothing_is_a_batch_dimension():
    ((size,),) = infer_dims([[(1,)], [(2,)]], [None, None])
    assert type(size) is DynamicDim


def test_one_call_is_static():
    assert infer_dims([[(1, 3)]], [1]) == ((1, 3),)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=8))
def test_every_size_seen_is_inside_its_range(pairs):
    calls = [[(batch, length), (batch * 3,)] for batch, length in pairs]
    specs = infer_dims(calls, [batch for batch, _ in pairs])
    for shapes in calls:
        for spec, shape in zip(specs, shapes, strict=True):
            for size, seen in zip(spec, shape, strict=True):
                assert size.min <= seen <= size.max if isinstance(size, DynamicDim) else size == seen
