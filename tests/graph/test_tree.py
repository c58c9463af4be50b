"""Nested values come apart and together again."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.graph.tree import flatten, path_text

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Options:
    scale: float
    parts: list


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    derived: int = dataclasses.field(init=False, default=7)

    def __post_init__(self):
        if self.x == "never":
            raise AssertionError("rebuilding must not run __post_init__")


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.tuples(st.floats(allow_nan=False), st.lists(inner, max_size=2)).map(lambda pair: Options(*pair)),
        inner.map(Frozen),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=2).map(deque),
    ),
    max_leaves=12,
)


@given(trees)
def test_a_value_comes_back_equal_and_of_the_same_types(value):
    parts, structure = flatten(value)
    again = structure.unflatten(parts)
    assert again == value
    assert flatten(again)[1] == structure
    assert type(again) is type(value)
    assert len(list(structure.paths())) == len(parts)


@given(trees)
def test_structures_hash_and_pickle(value):
    structure = flatten(value)[1]
    assert pickle.loads(pickle.dumps(structure)) == structure
    assert hash(flatten(value)[1]) == hash(structure)


def test_types_and_keys_tell_structures_apart():
    values = [
        (1, 2),
        [1, 2],
        Pair(1, 2),
        {"a": 1, "b": 2},
        {"a": 1, "c": 2},
        OrderedDict(a=1, b=2),
        (1, (2,)),
    ]
    structures = [flatten(value)[1] for value in values]
    assert len(set(structures)) == len(values)


def test_an_unregistered_mapping_is_a_container():
    value = UserDict(a=1, b=[2])
    parts, structure = flatten(value)
    assert parts == [1, 2]
    assert type(structure.unflatten([3, 4])) is UserDict
    assert structure.unflatten([3, 4]) == UserDict(a=3, b=[4])


def test_a_defaultdict_keeps_its_factory():
    value = defaultdict(list, a=1)
    again = flatten(value)[1].unflatten([5])
    assert again["missing"] == []


def test_the_wrong_number_of_leaves_is_refused():
    structure = flatten([1, [2]])[1]
    with pytest.raises(ValueError, match="too few"):
        structure.unflatten([1])
    with pytest.raises(ValueError, match="too many"):
        structure.unflatten([1, 2, 3])


def test_paths_read_as_code():
    structure = flatten({"options": {"mask": [1, 2]}, "pair": Pair(3, 4)})[1]
    assert [path_text(path) for path in structure.paths()] == [
        "options['mask'][0]",
        "options['mask'][1]",
        "pair['left']",
        "pair['right']",
    ]


class Encoding(collections.UserDict):
    """As a tokenizer's: items, an object beside them that a copy made of the items lacks, and a number."""

    def __init__(self, data=(), encodings=None, count=None):
        super().__init__(data)
        self.encodings, self.count = encodings, count


def test_a_mapping_with_an_object_beside_its_items_is_the_same_after_it_was_put_together_again():
    leaves, structure = flatten(Encoding({"ids": 1}, [object()], 2))
    again = structure.unflatten(leaves)
    assert (dict(again), again.count) == ({"ids": 1}, 2)
    assert flatten(again)[1] == structure
    assert flatten(Encoding({"ids": 1}, None, 3))[1] != structure
