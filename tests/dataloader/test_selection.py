"""Every sample is used, none twice in a batch, and the choice is a function of the numbers alone."""

from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.dataloader.selection import in_order, spread


def listed(batches):
    return [list(batch) for batch in batches]


def of(count):
    return lambda _: count


def test_samples_are_taken_in_order():
    assert listed(in_order(of(4), 2)) == [[0, 1], [2, 3]]


def test_the_last_batch_begins_earlier_where_the_size_does_not_divide():
    assert listed(in_order(of(5), 2)) == [[0, 1], [2, 3], [3, 4]]


def test_too_few_samples_are_repeated():
    assert listed(in_order(of(2), 5)) == [[0, 1, 0, 1, 0]]


def test_no_more_batches_than_wanted():
    assert listed(in_order(of(100), 2, 2)) == [[0, 1], [2, 3]]


def test_a_stream_is_asked_for_no_more_than_the_batches_need():
    asked = []
    batches = in_order(lambda wanted: asked.append(wanted) or wanted, 3, 2)
    next(batches)
    assert asked == [3]
    assert listed(batches) == [[3, 4, 5]]
    assert asked == [3, 6]


def test_batches_are_spread_from_the_first_sample_to_the_last():
    assert listed(spread(100, 1, 4)) == [[0], [33], [66], [99]]
    assert listed(spread(100, 2, 3)) == [[0, 1], [49, 50], [98, 99]]
    assert listed(spread(100, 2, 1)) == [[0, 1]]


@given(st.integers(1, 60), st.integers(1, 9))
def test_without_a_limit_every_sample_is_used_and_none_twice_in_a_batch(count, size):
    batches = listed(in_order(of(count), size))
    assert {index for batch in batches for index in batch} == set(range(count))
    assert all(len(batch) == size for batch in batches)
    assert all(len(set(batch)) == min(size, count) for batch in batches)
    assert len(batches) == max(1, -(-count // size))


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 40))
def test_spread_batches_are_full_within_the_dataset_in_order_and_not_too_many(count, size, most):
    batches = listed(spread(count, size, most))
    assert 1 <= len(batches) <= most
    assert all(len(batch) == size and set(batch) <= set(range(count)) for batch in batches)
    assert batches == sorted(batches)
    assert batches == listed(spread(count, size, most))
