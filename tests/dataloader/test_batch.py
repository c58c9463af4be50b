"""Which arguments a sample or a batch stands for."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.batch import Form, leading_size

X = torch.ones(3)
Y = torch.zeros(3)


def arguments(sample):
    return Form.of_sample(sample).arguments(sample)


@pytest.mark.parametrize(
    ("sample", "args", "kwargs"),
    [
        (X, (X,), {}),
        ("text", ("text",), {}),
        (3, (3,), {}),
        ((X, Y), (X, Y), {}),
        ([X, Y], (X, Y), {}),
        ({"x": X}, (), {"x": X}),
        (OrderedDict(x=X), (), {"x": X}),
        (((X,), {"scale": 2}), (X,), {"scale": 2}),
        (([X], {}), (X,), {}),
        (((), {"x": X}), (), {"x": X}),
    ],
)
def test_a_sample_stands_for_these_arguments(sample, args, kwargs):
    assert arguments(sample) == (args, kwargs)


@pytest.mark.parametrize(
    "sample",
    [(X, {"scale": 2}), ((X,), {1: 2}), ((X,), X), ((X,), {}, X), ("ab", {"scale": 2}), [[X], {"scale": 2}]],
)
def test_what_only_looks_like_a_pair_is_positional(sample):
    assert arguments(sample) == (tuple(sample), {})


def test_a_dataclass_is_one_argument():
    @dataclass
    class Inputs:
        x: torch.Tensor

    assert Form.of_sample(Inputs(X)) is Form.ONE


def test_a_mapping_without_names_is_an_error_that_says_how_to_pass_it():
    with pytest.raises(AITuneUserInputError, match=r"keys 1.*wrap each sample as \(\(sample,\), \{\}\)"):
        arguments({1: X})


def test_a_pair_that_torch_collated_is_still_a_pair():
    assert Form.of_batch([[X], {"scale": 2}]) is Form.PAIR


def test_a_list_of_strings_that_a_loader_yields_is_one_argument_but_a_tuple_is_two():
    assert Form.of_batch(["a", "b"]) is Form.ONE
    assert Form.of_batch(("a", "b")) is Form.POSITIONAL


def test_the_leading_size_is_that_of_the_first_tensor_that_has_an_axis():
    assert leading_size("a", torch.tensor(1), {"deep": [None, (torch.ones(4, 2),)]}, torch.ones(7)) == 4
    assert leading_size("a", [1, 2], torch.tensor(1)) is None
