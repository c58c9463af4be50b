"""Bad input: a clear error of our tree, and the module as it was."""

from __future__ import annotations

import logging
import math

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneError, AITuneUserInputError


def run_and_expect(model, said, *args, error=AITuneUserInputError, **kwargs):
    before = dict(model.__dict__)
    with pytest.raises(error, match=said) as raised:
        ait.tune(*args, **kwargs)
    assert model.__dict__ == before
    return raised.value


@pytest.fixture
def wrapped(model, always):
    return ait.Module(model, "m", always())


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ([], "empty"),
        ([None, None], "None"),
        ([torch.ones(4), None], "None"),
        ([torch.ones(4), torch.ones(5)], "collate_fn"),
        ([object(), object()], "object"),
        ({"x": torch.ones(4)}, "list"),
        (3, "dataset"),
        ("text", "dataset"),
    ],
)
def test_scenario_14_a_dataset_that_cannot_be_used(model, wrapped, dataset, said):
    run_and_expect(model, said, wrapped, dataset)


def test_samples_with_a_label_name_the_extra_item(model, wrapped):
    dataset = [(torch.ones(4), 1)] * 3
    assert "item 1" in str(run_and_expect(model, "label", wrapped, dataset))


def test_a_tensor_that_has_a_batch_axis_already_gets_a_proposal():
    class NeedsTwoAxes(torch.nn.Module):
        def forward(self, x):
            return torch.einsum("ij,jk->ik", x, torch.ones(4, 2))

    module = NeedsTwoAxes().eval()
    run_and_expect(module, r"\[x\[0\]\]", ait.Module(module, "m"), torch.ones(3, 4))


def test_a_forward_that_raises_raises_its_own_error(samples, always):
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    module = Broken().eval()
    run_and_expect(module, "mine", ait.Module(module, "m", always()), samples, error=KeyError)


def test_scenario_42_mixed_dtypes_raise_as_in_eager(samples, always):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).half()).eval()
    with pytest.raises(RuntimeError) as eager:
        module(torch.ones(1, 4))
    error = run_and_expect(module, "dtype", ait.Module(module, "m", always()), samples, error=RuntimeError)
    assert str(error) == str(eager.value)
    assert not isinstance(error, AITuneError)


def test_no_candidates(model):
    with pytest.raises(AITuneUserInputError, match="empty"):
        ait.MaxThroughputStrategy([])


def test_unknown_config_fields_and_values():
    with pytest.raises(AttributeError, match="cache_dir"):
        ait.config.unknown = 1
    with pytest.raises(AttributeError, match="unknown"):
        _ = ait.config.unknown
    with pytest.raises(ValueError, match="'process' or 'none'"):
        ait.config.isolation = "container"


@pytest.mark.parametrize("func", [3, "model", None])
def test_a_func_that_cannot_be_called(model, wrapped, samples, func):
    run_and_expect(model, "func must be", func, samples)


def test_a_func_that_calls_no_wrapped_module(model, wrapped, samples):
    run_and_expect(model, "called no wrapped module; wrapped are: .*m", lambda x: x + 1, samples)
    run_and_expect(model, "ReLU is not wrapped", torch.nn.ReLU(), samples)


def test_a_function_without_a_dataset(model, wrapped):
    run_and_expect(model, "needs a dataset", lambda x: x)


def test_a_module_without_a_dataset_and_without_recorded_calls(model, wrapped):
    run_and_expect(model, "enable_recording", wrapped)


def test_a_module_without_a_dataset_uses_its_recorded_calls(model, wrapped):
    wrapped.enable_recording()
    wrapped(torch.ones(2, 4))

    class Pipeline:
        def __init__(self):
            self.parts = {"encoder": [model]}

    assert list(ait.tune(Pipeline()).modules) == ["m"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("batch_sizes", 2),
        ("batch_sizes", []),
        ("batch_sizes", [0]),
        ("max_num_batches_per_batch_size", 0),
        ("device", "warp"),
        ("dry_run", "yes"),
        ("disable_external_logging", 1),
        ("clear_cache", None),
        ("ignore_failing_modules", 0),
        ("time_limit", -1),
        ("time_limit", float("nan")),
        ("time_limit", 10**400),
        pytest.param("time_limit", 10**5000, id="time_limit of 5000 digits"),
        ("backend_time_limit", -math.inf),
        ("backend_time_limit", 10**400),
        ("seed", -1),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(model, wrapped, samples, argument, value):
    run_and_expect(model, argument, wrapped, samples, **{argument: value})


def test_a_module_in_training_mode_is_tuned_as_it_stands_with_a_warning(model, samples, always, caplog):
    model.train()
    with caplog.at_level(logging.WARNING, logger="aitune"):
        ait.tune(ait.Module(model, "m", always()), samples)
    assert ".eval()" in caplog.text
    assert model.training
