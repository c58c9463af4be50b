"""How much of a dataset is used is validated before anything is read."""

import numpy as np
import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.limits import Limits


def test_two_sizes_and_at_most_32_batches_are_the_default():
    limits = Limits.checked()
    assert limits.batch_sizes == (1, 2)
    assert (limits.per_size, limits.most) == (None, 32)


def test_duplicates_are_dropped_and_the_order_is_kept():
    assert Limits.checked([4, 1, 4, 2, 1]).batch_sizes == (4, 1, 2)


@pytest.mark.parametrize("sizes", [(1, 8), range(1, 9, 7), [np.int64(1), np.int32(8)]])
def test_any_sequence_of_integers_will_do(sizes):
    limits = Limits.checked(sizes)
    assert limits.batch_sizes == (1, 8)
    assert all(type(size) is int for size in limits.batch_sizes)


def test_a_single_size_is_an_error_that_proposes_the_list():
    with pytest.raises(AITuneUserInputError, match=r"write batch_sizes=\[4\]"):
        Limits.checked(4)


@pytest.mark.parametrize("sizes", [[], [0], [-1], [True], [1.0], ["1"], [None], "12", {1, 2}, {"a": 1}, 0, 2.5, True])
def test_anything_else_is_an_error_that_says_what_is_taken(sizes):
    with pytest.raises(AITuneUserInputError, match=r"batch_sizes .*\[1, 2\]"):
        Limits.checked(sizes)


def test_a_number_of_batches_is_taken_as_it_is():
    assert Limits.checked(None, 100).most == 100
    assert Limits.checked(None, np.int64(1)).most == 1


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "3", [3]])
def test_a_number_of_batches_below_one_is_an_error(most):
    with pytest.raises(AITuneUserInputError, match="max_num_batches_per_batch_size must be an integer of at least 1"):
        Limits.checked(None, most)
