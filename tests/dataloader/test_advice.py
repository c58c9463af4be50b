"""A dataset that does not suit the function is explained where it can be."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from aitune.torch.dataloader import BatchSource, DataLoaderFactory, explain_rejection


class Net(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], 12) + 1


def passing_on(*args, **kwargs):
    return Net()(*args, **kwargs)


def advice(func, dataset, retry=None, sizes=(2,)):
    """Return the advice on the first batch that the function rejects; func must reject one."""
    for batch in BatchSource(dataset, sizes).batches():
        try:
            func(*batch.args, **batch.kwargs)
        except Exception as error:
            found = explain_rejection(func, batch, error, dataset=dataset, retry=retry)
            return None if found is None else str(found)
    raise AssertionError("the function took every batch")


def conv(x):
    return nn.functional.conv2d(x, torch.ones(1, 3, 1, 1))


def test_a_tensor_that_has_a_batch_axis_already_is_told_to_lose_it():
    x = torch.ones(4, 3, 8, 8)
    message = advice(conv, x, retry=lambda: conv(x) is not None)
    assert "(4, 3, 8, 8)" in message
    assert "(2, 4, 3, 8, 8)" in message
    assert "pass [x[0]]" in message


def test_a_tensor_that_does_not_run_by_itself_either_gets_no_advice():
    assert advice(conv, torch.ones(4, 3, 8, 8), retry=lambda: False) is None
    assert advice(conv, torch.ones(4, 3, 8, 8)) is None


def test_a_tensor_without_rows_is_not_tried():
    def no(x):
        raise RuntimeError("no")

    assert advice(no, torch.tensor(1.0), retry=lambda: pytest.fail("was tried")) is None


@pytest.mark.parametrize(
    ("func", "name"),
    [(Net(), "Net.forward"), (Net().forward, "Net.forward"), (passing_on, "passing_on")],
)
def test_a_label_that_forward_does_not_take_is_named(func, name):
    message = advice(func, [(torch.ones(3, 4), torch.tensor(7))] * 2)
    assert name in message
    assert "takes 1 positional argument but the samples hold 2 items" in message
    assert "item 1 (Tensor of shape (2,) and dtype int64 in the batch)" in message
    assert "[sample[0] for sample in dataset]" in message


def test_two_items_of_three_are_kept_where_two_are_taken():
    message = advice(lambda x, y: x + y, [(1, 2, "label")])
    assert "item 2 (list of 2 items in the batch) is not taken" in message
    assert "[sample[:2] for sample in dataset]" in message


@pytest.mark.parametrize("func", [Net(), passing_on])
def test_a_named_label_is_named(func):
    message = advice(func, [{"x": torch.ones(3, 4), "label": 1}])
    assert "takes no argument 'label'" in message
    assert "if k != 'label'" in message


def test_a_loader_is_told_to_use_its_collate_fn():
    samples = [(torch.ones(3, 4), 1)] * 2
    assert "Give the DataLoader a dataset or a collate_fn" in advice(Net(), DataLoader(samples))
    assert "Give the DataLoaderFactory a dataset or a collate_fn" in advice(Net(), DataLoaderFactory(samples))


def test_errors_of_another_kind_get_no_advice():
    assert advice(Net(), [torch.ones(5)]) is None
    assert advice(lambda x, y: x.nothing, [(torch.ones(1), 1)]) is None
    assert advice(lambda x: x + None, [torch.ones(1)]) is None
    assert advice(lambda x, y: x, [torch.ones(1)]) is None
    assert advice(len, [(torch.ones(1), 1, 2)]) is not None
    assert advice(int, [(torch.ones(1), torch.ones(1))]) is None


def test_an_argument_that_an_inner_function_lacks_is_not_blamed_on_the_samples():
    def inner():
        return 0

    assert advice(lambda x: inner(1, 2, 3), [torch.ones(1)]) is None
