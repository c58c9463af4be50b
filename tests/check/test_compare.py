"""Structure, types and values of an output against those of another."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from aitune.torch.check import Bounds, compare
from aitune.torch.check.expectation import expect
from aitune.torch.check.facts import Facts
from aitune.torch.check.inputs import Probe
from aitune.torch.check.outcome import Outcome, perform
from aitune.torch.check.state import take_snapshot
from aitune.torch.check.structure import structure_mismatch
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.tree import flatten

Point = namedtuple("Point", "x y")
BOUNDS = Bounds.of("float32")


@dataclass
class Answer:
    value: Any
    other: Any


def outcome_of(value: Any) -> Outcome:
    probe = Probe("a value", Sample(()), CallSignature(()))
    return perform(lambda: value, probe, take_snapshot(nn.Module()))


def mismatch(got: Any, expected: Any, **options: Any) -> str | None:
    return compare(outcome_of(got), expect(outcome_of(expected).kept()), BOUNDS, **options).mismatch


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(["a", "b"]),
    st.floats(allow_nan=True, width=32),
    st.integers(1, 3).map(lambda n: torch.arange(float(n))),
    st.integers(1, 3).map(torch.arange),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        st.tuples(inner, inner).map(lambda pair: Answer(*pair)),
    ),
    max_leaves=6,
)


def rebuilt(value: Any) -> Any:
    parts, structure = flatten(value)
    return structure.unflatten([part.clone() if isinstance(part, torch.Tensor) else part for part in parts])


@settings(max_examples=60, deadline=None)
@given(values)
def test_any_value_equals_its_copy(value) -> None:
    assert mismatch(rebuilt(value), value) is None


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_structures_differ_or_are_equal_and_the_difference_is_said(first, second) -> None:
    one, other = flatten(first)[1], flatten(second)[1]
    found = structure_mismatch(one, other)
    assert (found is None) == (one == other)
    assert found is None or found.startswith("output")


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        ([torch.ones(1)], (torch.ones(1),), "output is a list, the module returns a tuple"),
        (Point(1, 2), (1, 2), "output is a Point, the module returns a tuple"),
        (OrderedDict(a=1), {"a": 1}, "output is a OrderedDict, the module returns a dict"),
        ({"a": [1]}, {"a": (1,)}, "output['a'] is a list"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "in the order"),
        ({"a": 1, "c": 2}, {"a": 1, "b": 2}, "lacks ['b'] and has ['c'] in addition"),
        ((1, 2), (1, 2, 3), "lacks [2]"),
        (1, True, "output is a int, the module's is a bool"),
        (1, 1.0, "output is a int, the module's is a float"),
        (None, torch.ones(1), "output is a NoneType, the module's is a Tensor"),
        ("b", "a", "output is str 'b', the module's is str 'a'"),
        (1.5, 1.0, "relative error of 0.5"),
        (np.ones(3), np.ones(3, np.float32), "float64[3], the module's is float32[3]"),
        (np.ones(3), np.zeros(3), "relative error"),
        (np.ones(3, int), np.zeros(3, int), "other values"),
        (torch.ones(2, 1), torch.ones(2), "has shape [2, 1], the module returns [2]"),
        (torch.ones(2).to_sparse(), torch.ones(2), "has layout sparse_coo, the module returns strided"),
        (torch.ones(2, device="meta"), torch.ones(2), "has device meta, the module returns cpu"),
        (nn.Parameter(torch.ones(2)), torch.ones(2), "has type Parameter, the module returns Tensor"),
        (torch.ones(2, requires_grad=True), torch.ones(2), "requires grad"),
        (torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3]), "differs in 1 of 3 values, first at [2]: 4 instead of 3"),
        (torch.ones(2, 2).to_sparse() * 2, torch.ones(2, 2).to_sparse(), "relative error of 1"),
    ],
)
def test_what_differs_is_said(got, expected, words) -> None:
    assert words in mismatch(got, expected)


def test_a_python_number_is_compared_by_distance() -> None:
    assert mismatch(1.00001, 1.0) is None
    assert mismatch(complex(1, 1e-5), complex(1, 0)) is None
    assert mismatch(float("inf"), float("inf")) is None
    assert mismatch(float("nan"), float("nan")) is None


def test_objects_that_cannot_be_compared_are_no_match() -> None:
    class Thing:
        pass

    assert "cannot be compared" in mismatch(Thing(), Thing())


def test_without_values_everything_else_is_compared() -> None:
    assert mismatch(torch.ones(3), torch.zeros(3), values=False) is None
    assert mismatch(torch.tensor([1, 2]), torch.tensor([3, 4]), values=False) is None
    assert "shape" in mismatch(torch.ones(3), torch.zeros(4), values=False)
    nan = torch.tensor([float("nan"), 1.0])
    assert "where the module's is nan" in mismatch(torch.ones(2), nan, values=False)


def test_the_output_nearest_to_its_bound_is_reported() -> None:
    expected = expect(outcome_of((torch.ones(10), torch.ones(10))).kept())
    found = compare(outcome_of((torch.ones(10) * 1.00001, torch.ones(10) * 1.00005)), expected, BOUNDS)
    assert (found.where, found.bound) == ("output[1]", 1e-4)
    assert found.error == pytest.approx(5e-5, rel=1e-2)


def test_a_contiguous_tensor_stands_for_a_strided_one_and_not_the_other_way_round() -> None:
    strided, plain = Facts.of(torch.ones(2, 3).t()), Facts.of(torch.ones(3, 2))
    assert plain.mismatch(strided) is None
    assert strided.mismatch(plain) == "is not contiguous, the module's is"
