"""DataLoaderFactory makes full batches of every size."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader import DataLoaderFactory


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.tensor(index**2)


SQUARES = [torch.tensor(index**2) for index in range(5)]


class Endless(IterableDataset):
    def __iter__(self):
        return (torch.tensor(number) for number in itertools.count())


# From Python 3.12 on, CPython warns when a process with threads forks, as torch's loader does by default.
forking = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def lists(loader):
    return [batch.tolist() for batch in loader]


def test_it_makes_a_loader_for_each_batch_size():
    factory = DataLoaderFactory(Squares())
    loader = factory.create_dataloader(2)
    assert isinstance(loader, DataLoader)
    assert loader.batch_size == 2
    assert len(loader) == 3
    assert lists(loader) == [[0, 1], [4, 9], [9, 16]]
    assert lists(factory.create_dataloader(1)) == [[0], [1], [4], [9], [16]]


@pytest.mark.parametrize("dataset", [Squares(), SQUARES, iter(SQUARES)])
def test_too_few_samples_are_repeated_until_one_batch_is_full(dataset):
    assert lists(DataLoaderFactory(dataset).create_dataloader(8)) == [[0, 1, 4, 9, 16, 0, 1, 4]]


def test_a_tensor_is_one_sample():
    (batch,) = DataLoaderFactory(torch.ones(3, 4)).create_dataloader(2)
    assert batch.shape == (2, 3, 4)


def test_an_iterator_serves_every_size_though_it_is_read_once():
    factory = DataLoaderFactory(iter([1, 2, 3, 4]))
    assert lists(factory.create_dataloader(2)) == [[1, 2], [3, 4]]
    assert lists(factory.create_dataloader(4)) == [[1, 2, 3, 4]]


def test_an_endless_dataset_is_read_lazily():
    loader = DataLoaderFactory(Endless()).create_dataloader(3)
    assert lists(itertools.islice(loader, 2)) == [[0, 1, 2], [3, 4, 5]]


def test_the_collate_fn_of_the_user_gets_the_list_of_samples():
    factory = DataLoaderFactory(
        ["a", "bb"], collate_fn=lambda texts: {"lengths": torch.tensor([len(t) for t in texts])}
    )
    (batch,) = factory.create_dataloader(2)
    assert batch["lengths"].tolist() == [1, 2]


@forking
def test_workers_read_a_dataset_with_a_length():
    assert lists(DataLoaderFactory(Squares(), num_workers=1).create_dataloader(4)) == [
        [0, 1, 4, 9],
        [1, 4, 9, 16],
    ]


@forking
def test_workers_read_an_iterable_dataset_anew():
    loader = DataLoaderFactory(Endless(), num_workers=1).create_dataloader(2)
    assert lists(itertools.islice(loader, 2)) == [[0, 1], [2, 3]]


def test_workers_cannot_share_an_iterator():
    with pytest.raises(AITuneUserInputError, match="use num_workers=0"):
        DataLoaderFactory(iter([1]), num_workers=1).create_dataloader(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"collate_fn": 3}, "collate_fn must be a function"),
        ({"num_workers": -1}, "num_workers must be an integer of at least 0"),
        ({"num_workers": True}, "num_workers must be an integer of at least 0"),
    ],
)
def test_wrong_arguments_are_an_error(arguments, words):
    with pytest.raises(AITuneUserInputError, match=words):
        DataLoaderFactory([1], **arguments)


@pytest.mark.parametrize("dataset", [[], None, 3, {"x": [1]}])
def test_a_dataset_that_cannot_be_used_is_an_error_once_a_loader_is_made(dataset):
    with pytest.raises(AITuneUserInputError):
        DataLoaderFactory(dataset).create_dataloader(1)


@pytest.mark.parametrize("dataset", [Squares(), iter([1, 2, 3])])
def test_its_loaders_leave_the_global_generators_alone(dataset, unchanged_torch_state):
    with unchanged_torch_state():
        list(DataLoaderFactory(dataset).create_dataloader(2))
