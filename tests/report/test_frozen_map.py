"""A result's mappings cannot be changed behind its back."""

import copy
import pickle

import pytest

from aitune.torch.report.frozen_map import FrozenMap


def test_it_reads_like_a_dict_and_keeps_the_order():
    frozen = FrozenMap({"b": 1, "a": 2})
    assert list(frozen.items()) == [("b", 1), ("a", 2)]
    assert frozen == {"a": 2, "b": 1}
    assert repr(frozen) == "{'b': 1, 'a': 2}"


def test_it_cannot_be_written_to():
    with pytest.raises(TypeError):
        FrozenMap({})["a"] = 1


def test_changes_of_the_source_do_not_show():
    source = {"a": 1}
    frozen = FrozenMap(source)
    source["a"] = 2
    assert frozen["a"] == 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_and_pickles_are_equal_and_hash_alike(again):
    frozen = FrozenMap({"b": 1, "a": 2})
    assert again(frozen) == frozen
    assert hash(again(frozen)) == hash(frozen)
    assert list(again(frozen)) == ["b", "a"]
