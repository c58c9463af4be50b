"""What ends a tune before its time leaves every module as it was, and what was found can be read."""

from __future__ import annotations

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import partial_result
from aitune.testing import FunctionBackend, FunctionBackendConfig


@pytest.fixture
def interrupted():
    """A backend during whose build somebody presses Ctrl-C."""

    def make(job):
        raise KeyboardInterrupt

    return FunctionBackend(make, FunctionBackendConfig(label="interrupted"))


@pytest.fixture
def in_order():
    def make(*backends):
        strategy = ait.MaxThroughputStrategy(backends=list(backends))
        return strategy.enable_performance_validation(False).enable_find_max_batch_size(False)

    return make


def test_ctrl_c_leaves_the_module_as_it_was(model, samples, double_agent, interrupted, in_order):
    good = double_agent("good")
    x = torch.randn(3, 4)
    before = model(x)
    wrapped = ait.Module(model, "model", in_order(good, interrupted))
    with pytest.raises(KeyboardInterrupt) as caught:
        ait.tune(wrapped, samples)
    assert torch.equal(wrapped(x), before)
    assert model._compiled_call_impl is None, "nothing of aitune is left on the module"
    assert good.open_engines == 0
    partial = partial_result(caught.value)
    (graph,) = partial.modules["model"].graphs
    assert [str(trial.verdict) for trial in graph.trials] == ["accepted"]
    assert not partial.complete
    assert "interrupted" in str(partial)


def test_ctrl_c_takes_back_what_the_tune_had_installed(model, samples, double_agent, interrupted, always):
    first, second = ait.Module(model, "first", always(double_agent())), torch.nn.Linear(3, 2).eval()
    second = ait.Module(second, "second", always(interrupted))
    with pytest.raises(KeyboardInterrupt) as caught:
        ait.tune(lambda x: second(first(x)), samples)
    assert str(ait.handle(first).state) == "init"
    assert model._compiled_call_impl is None
    partial = partial_result(caught.value)
    assert partial.modules["first"].graphs[0].chosen != "original"
    assert partial.modules["second"].state == "failed"


def test_a_tune_of_one_module_carries_its_result(model, interrupted, double_agent, in_order):
    wrapped = ait.Module(model, "model", in_order(double_agent("good"), interrupted))
    handle = ait.handle(wrapped)
    handle.enable_recording()
    wrapped(torch.randn(2, 4))
    with pytest.raises(KeyboardInterrupt) as caught:
        handle.tune()
    (graph,) = partial_result(caught.value).graphs
    assert len(graph.trials) == 1


def test_an_exception_of_a_failing_module_carries_what_was_found(model, samples, unlucky, always, double_agent):
    first = ait.Module(model, "first", always(double_agent()))
    second = ait.Module(torch.nn.Linear(3, 2).eval(), "second", always(unlucky))
    with pytest.raises(RuntimeError, match="no luck") as caught:
        ait.tune(lambda x: second(first(x)), samples, ignore_failing_modules=False)
    partial = partial_result(caught.value)
    assert set(partial.modules) == {"first", "second"}
    assert str(ait.handle(first).state) == "init"


def test_an_exception_that_was_not_raised_by_a_tune_carries_nothing():
    assert partial_result(ValueError("other")) is None
