"""Every form of a dataset becomes batches, or an error before anything runs."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader import BatchSource, DataLoaderFactory


class Rows(Dataset):
    """A map-style dataset that remembers what was fetched."""

    def __init__(self, count, make=lambda i: torch.full((2,), float(i))):
        self.count, self.make, self.fetched = count, make, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.fetched.append(index)
        return self.make(index)


class Lengthless(Dataset):
    """A map-style dataset that ends with IndexError and has no length."""

    def __getitem__(self, index):
        if index > 2:
            raise IndexError
        return torch.tensor([index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([0]), torch.tensor([1]), torch.tensor([2])])


def batches(dataset, *args, **kwargs):
    return list(BatchSource(dataset, *args, **kwargs).batches())


def firsts(dataset, *args, **kwargs):
    """Return size and first number of each row, for datasets of one tensor a sample."""
    return [
        (batch.size, [row.flatten()[0].item() for row in batch.args[0]]) for batch in batches(dataset, *args, **kwargs)
    ]


# ---- forms


def test_a_tensor_is_one_sample_that_is_repeated():
    one, two = batches(torch.ones(3, 4))
    assert (one.size, one.args[0].shape) == (1, (1, 3, 4))
    assert (two.size, two.args[0].shape) == (2, (2, 3, 4))


def test_an_array_is_one_sample_as_a_tensor_is():
    assert [batch.args[0].shape for batch in batches(np.ones((3, 4)), [2])] == [(2, 3, 4)]


SAMPLES = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2])]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SAMPLES,
        lambda: tuple(SAMPLES),
        lambda: Rows(3),
        Lengthless,
        Stream,
        lambda: iter(SAMPLES),
        lambda: (sample for sample in SAMPLES),
        lambda: DataLoaderFactory(SAMPLES),
        lambda: DataLoaderFactory(iter(SAMPLES)),
    ],
)
def test_every_form_of_a_dataset_gives_the_same_batches(make):
    assert firsts(make(), [2, 1]) == [(2, [0, 1]), (2, [1, 2]), (1, [0]), (1, [1]), (1, [2])]


@pytest.mark.parametrize(
    ("sample", "args", "kwargs"),
    [
        ("text", (["text", "text"],), {}),
        (("text", {"a": 1}), (["text", "text"], {"a": 1}), {}),
        (3, (3,), {}),
        ((3, "text"), (3, ["text", "text"]), {}),
        ([3, None], (3, None), {}),
        ({"flag": True, "name": "a"}, (), {"flag": True, "name": ["a", "a"]}),
        (((1,), {"scale": 0.5}), (1,), {"scale": 0.5}),
    ],
)
def test_samples_of_every_kind_become_arguments(sample, args, kwargs):
    (batch,) = batches([sample, sample], [2])
    assert (batch.args, batch.kwargs, batch.size) == (args, kwargs, 2)


def test_arrays_in_samples_become_tensors():
    (batch,) = batches([{"x": np.zeros(3, np.float32)}] * 2, [2])
    assert batch.kwargs["x"].shape == (2, 3)
    assert batch.kwargs["x"].dtype == torch.float32


def test_writing_to_a_batch_leaves_the_dataset_alone():
    sample = torch.ones(2)
    for batch in BatchSource([sample]).batches():
        batch.args[0].zero_()
    assert sample.sum() == 2


# ---- how many


def test_too_few_samples_are_repeated():
    assert firsts(SAMPLES, [4]) == [(4, [0, 1, 2, 0])]


def test_an_explicit_number_takes_the_first_batches():
    assert firsts(Rows(100), [1, 2], 2) == [(1, [0]), (1, [1]), (2, [0, 1]), (2, [2, 3])]


def test_without_a_number_32_batches_are_spread_over_the_dataset():
    rows = Rows(1000)
    found = firsts(rows, [1])
    assert len(found) == 32
    assert (found[0][1], found[-1][1]) == ([0], [999])
    assert len(rows.fetched) == 32


def test_an_endless_stream_is_read_once_and_no_further_than_needed():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield torch.tensor([number])

    source = BatchSource(endless(), [1, 3], 2)
    assert read == []
    running = source.batches()
    next(running)
    assert read == [0, 1, 2]
    assert [batch.args[0].flatten().tolist() for batch in running] == [[1], [0, 1, 2], [3, 4, 5]]
    assert read == [0, 1, 2, 3, 4, 5]


def test_an_endless_stream_ends_without_a_number_too():
    assert len(batches(itertools.repeat(torch.ones(1)))) == 64


def test_batches_can_be_gone_through_again_even_of_an_iterator():
    source = BatchSource(iter(SAMPLES), [2])
    assert len(list(source.batches())) == len(list(source.batches())) == 2


# ---- loaders


def test_the_batches_of_a_loader_are_used_as_they_come_and_this_is_said():
    source = BatchSource(DataLoader(SAMPLES, batch_size=2), [7])
    assert [(batch.size, batch.args[0].tolist()) for batch in source.batches()] == [
        (2, [[0], [1]]),
        (1, [[2]]),
    ]
    assert any("batch_sizes is not used" in note for note in source.notes)


def test_what_torch_makes_of_samples_in_a_loader_is_understood():
    (pair,) = batches(DataLoader([((torch.ones(2),), {"scale": 2.0})] * 2, batch_size=2))
    assert pair.args[0].shape == (2, 2)
    assert pair.kwargs["scale"].tolist() == [2, 2]
    (labelled,) = batches(DataLoader(TensorDataset(torch.ones(2, 3), torch.zeros(2)), batch_size=2))
    assert [value.shape for value in labelled.args] == [(2, 3), (2,)]
    (named,) = batches(DataLoader([{"x": torch.ones(3)}] * 2, batch_size=2))
    assert named.kwargs["x"].shape == (2, 3)
    (texts,) = batches(DataLoader(["a", "b"], batch_size=2))
    assert (list(texts.args), texts.size) == ([["a", "b"]], None)


def test_an_endless_loader_ends():
    class Endless(IterableDataset):
        def __iter__(self):
            return itertools.repeat(torch.ones(1))

    assert len(batches(DataLoader(Endless(), batch_size=2))) == 32
    assert len(batches(DataLoader(Endless(), batch_size=2), None, 3)) == 3


def test_a_factory_may_return_any_iterable():
    class Own(DataLoaderFactory):
        def __init__(self):
            """Does without the base class."""

        def create_dataloader(self, batch_size):
            return iter([torch.zeros(batch_size, 5)])

    assert [(batch.size, batch.args[0].shape) for batch in batches(Own())] == [(1, (1, 5)), (2, (2, 5))]


def test_a_smaller_last_batch_of_a_factory_is_not_called_full():
    class Own(DataLoaderFactory):
        def create_dataloader(self, batch_size):
            return DataLoader(self.dataset, batch_size=batch_size)

    assert [batch.size for batch in batches(Own(SAMPLES), [2])] == [2, 1]


def test_a_factory_whose_batches_lead_with_another_axis_has_the_size_that_was_asked_for():
    factory = DataLoaderFactory([torch.ones(5)] * 3, collate_fn=lambda samples: torch.stack(samples, dim=1))
    assert [batch.size for batch in batches(factory, [3])] == [3]


def test_the_collate_fn_of_a_factory_decides_the_arguments():
    factory = DataLoaderFactory(["a", "bb"], collate_fn=lambda texts: {"texts": texts, "pad": max(map(len, texts))})
    (batch,) = batches(factory, [2])
    assert (batch.args, batch.kwargs, batch.size) == ((), {"texts": ["a", "bb"], "pad": 2}, 2)


def test_texts_that_a_collate_fn_returns_as_a_list_are_one_argument():
    (batch,) = batches(DataLoaderFactory(["a", "bb"], collate_fn=list), [2])
    assert batch.args == (["a", "bb"],)


# ---- errors, before anything runs


def first_error(dataset, *args):
    """Return the error that is raised until the first batch is there."""
    with pytest.raises(AITuneUserInputError) as caught:
        next(BatchSource(dataset, *args).batches())
    return str(caught.value)


@pytest.mark.parametrize("dataset", [[], (), Rows(0), iter([]), DataLoader(Stream(), batch_size=4, drop_last=True)])
def test_an_empty_dataset_is_an_error(dataset):
    message = first_error(dataset)
    assert "empty" in message or "yields no" in message
    assert "at least one" in message


def test_an_empty_list_is_an_error_at_once():
    with pytest.raises(AITuneUserInputError, match="empty"):
        BatchSource([])


def test_a_factory_without_batches_is_an_error_that_names_the_size():
    class Own(DataLoaderFactory):
        def create_dataloader(self, batch_size):
            return [torch.ones(batch_size)] if batch_size == 1 else []

    assert "create_dataloader(2) yields no batch" in first_error(Own([1]))


def test_a_factory_that_returns_no_iterable_is_an_error():
    class Own(DataLoaderFactory):
        def create_dataloader(self, batch_size):
            return None

    assert "returned None: return an iterable of batches" in first_error(Own([1]))


@pytest.mark.parametrize(
    "dataset",
    [
        [None],
        [torch.ones(1), None],
        Rows(2, lambda i: None),
        iter([None]),
        DataLoader([1], collate_fn=lambda _: None),
    ],
)
def test_elements_that_are_none_are_an_error(dataset):
    assert "is None" in first_error(dataset)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (None, "the dataset is None"),
        (3, "type int is not supported"),
        (torch.nn.Sequential(), "Sequential is not supported"),
        (list, "not supported"),
        ("text", "such as [text]"),
        ({"x": torch.ones(3)}, "a list of dicts"),
        (print, "not supported"),
    ],
)
def test_what_is_no_dataset_is_an_error_that_says_what_is(dataset, words):
    assert words in first_error(dataset)


def test_a_dataset_that_raises_is_named_with_the_index_and_the_cause():
    def broken(index):
        return 1 / (2 - index)

    with pytest.raises(AITuneUserInputError, match=r"sample 2 .* ZeroDivisionError: ") as caught:
        batches(Rows(4, broken))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_stream_and_a_loader_that_raise_are_named_too():
    def broken():
        yield 1
        raise KeyError("missing")

    assert "reading sample 1 of the dataset raised KeyError" in first_error(broken())
    loader = DataLoader([torch.ones(1), torch.ones(2)], batch_size=2)
    assert "reading batch 0 of the DataLoader raised RuntimeError" in first_error(loader)


@pytest.mark.parametrize("wrap", [list, iter, DataLoaderFactory])
def test_samples_that_do_not_stack_fail_before_the_first_batch(wrap):
    message = first_error(wrap([torch.ones(3), torch.ones(4)]))
    assert "(3,)" in message
    assert "(4,)" in message
    assert "collate_fn" in message


def test_every_batch_of_a_list_is_tried_before_the_first_one_is_yielded():
    assert "in sample 2 but" in first_error([torch.ones(3)] * 3 + [torch.ones(4)])


def test_samples_of_different_lengths_work_at_batch_size_one():
    assert len(batches([torch.ones(3), torch.ones(4)], [1])) == 2


# ---- notes, random numbers


def test_one_size_is_said_to_mean_static_shapes():
    assert "batch_sizes=[1, 4]" in BatchSource(SAMPLES, [4]).notes[0]
    assert BatchSource(SAMPLES).notes == ()


def noise(_=None):
    return torch.rand(2) + random.random() + torch.from_numpy(np.random.rand(2)).float()  # noqa: NPY002


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rows(4, noise),
        lambda: map(noise, range(4)),
        lambda: DataLoader(Rows(4, noise), batch_size=2, shuffle=True),
        lambda: DataLoaderFactory(Rows(4, noise)),
    ],
)
def test_the_global_generators_are_as_before_though_the_dataset_draws_from_them(make, unchanged_torch_state):
    with unchanged_torch_state():
        found = [batch.args[0][0] for batch in BatchSource(make(), [1]).batches()]
    assert len({tuple(row.tolist()) for row in found}) == len(found)


def test_the_global_generators_are_as_before_at_every_batch_and_after_an_error(unchanged_torch_state):
    def broken(index):
        return noise() if index < 2 else noise() / None

    running = BatchSource(Rows(4, broken), [1]).batches()
    with unchanged_torch_state():
        next(running)
    torch.rand(1)
    with unchanged_torch_state(), pytest.raises(AITuneUserInputError):
        list(running)


def test_a_seed_before_makes_random_samples_reproducible():
    def run():
        torch.manual_seed(3)
        return [batch.args[0] for batch in BatchSource((torch.rand(2) for _ in range(3)), [1]).batches()]

    assert torch.equal(torch.stack(run()), torch.stack(run()))
