"""Engines that take over weights which changed: after a while, and only if they then answer as the module does."""

from __future__ import annotations

import copy
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

X = torch.ones(2, 4)
WHILE = 90
"""Calls after which weights that stay as they are have been taken over."""


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).eval()


@pytest.fixture
def copying(engine_of):
    """Make an engine that is a copy of a module, and can take weights; ``wrong`` spoils what it takes."""

    def make(module, *, wrong=False, fails=False):
        twin = copy.deepcopy(module)
        engine = engine_of(lambda x: twin(x))
        engine.refits = True
        engine.taken = 0

        def refit(state):
            engine.taken += 1
            if fails:
                raise RuntimeError("no room")
            twin.load_state_dict(state)
            if wrong:
                twin[0].weight.data.mul_(1.01)

        engine.refit = refit
        return engine

    return make


@pytest.fixture
def tuned(recorded, install, copying):
    def make(**options):
        module = net()
        graphs = recorded(module, [(2, (X,), {})])
        engine = copying(module, **options)
        return module, install(module, (graphs[0], engine)), engine

    return make


def calls(module, number):
    """Call a module, every answer held against its own forward."""
    for _ in range(number):
        x = torch.randn(2, 4)
        torch.testing.assert_close(module(x), module._call_impl(x))


REWRITES = {
    "load_state_dict": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "in place": lambda m: m[2].weight.mul_(3),
    "through .data": lambda m: m[2].weight.data.mul_(3),
    "other memory": lambda m: setattr(m[2].weight, "data", torch.randn(4, 8)),
    "running statistics": lambda m: m[1].running_mean.add_(1),
}


@pytest.mark.parametrize("name", REWRITES)
@torch.no_grad()
def test_an_engine_goes_on_with_changed_weights(tuned, caplog, name):
    module, dispatcher, engine = tuned()
    calls(module, 5)
    REWRITES[name](module)
    with caplog.at_level(logging.INFO, logger="aitune"):
        for _ in range(50):
            module(X)  # noticed within 50 calls
        calls(module, WHILE)
    assert engine.taken == 1
    assert "took over changed weights in" in caplog.text
    before = engine.calls
    calls(module, 100)
    assert engine.calls == before + 100
    assert not dispatcher.outdated


@torch.no_grad()
def test_as_often_as_weights_change_and_not_while_they_do(tuned):
    module, _, engine = tuned()
    for _ in range(200):
        module[0].weight.add_(0.01)
        calls(module, 1)
    assert engine.taken == 0
    for taken in (1, 2, 3):
        module[0].weight.mul_(0.9)
        calls(module, 2 * WHILE)
        assert engine.taken == taken


@torch.no_grad()
def test_an_engine_that_then_answers_otherwise_is_not_used_again(tuned, caplog):
    module, dispatcher, engine = tuned(wrong=True)
    calls(module, 5)
    module[0].weight.mul_(2)
    with caplog.at_level(logging.WARNING, logger="aitune"):
        calls(module, 2 * WHILE)
    assert "does not compute with changed weights what the module does" in caplog.text
    before = engine.calls
    calls(module, 100)
    assert engine.calls == before
    assert dispatcher.stats.fallbacks["engine failed"] > 100


@torch.no_grad()
def test_an_engine_that_cannot_take_them_leaves_the_calls_to_the_original(tuned, caplog):
    module, dispatcher, engine = tuned(fails=True)
    module[0].weight.mul_(2)
    with caplog.at_level(logging.WARNING, logger="aitune"):
        calls(module, 2 * WHILE)
    assert "does not take over the changed weights: RuntimeError: no room" in caplog.text
    assert engine.taken == 1
    assert dispatcher.outdated


OTHER_CHANGES = {
    "a child": lambda m: m.__setitem__(0, nn.Linear(4, 8)),
    "a parameter": lambda m: setattr(m[2], "bias", nn.Parameter(torch.randn(4))),
    "a flag": lambda m: m[1].train(),
    "an attribute": lambda m: setattr(m[1], "eps", 0.5),
}


@pytest.mark.parametrize("name", OTHER_CHANGES)
@torch.no_grad()
def test_what_is_more_than_other_weights_is_not_for_engines(tuned, name):
    module, _, engine = tuned()
    module[2].weight.mul_(2)
    OTHER_CHANGES[name](module)
    for _ in range(3 * WHILE):
        module(X)
    calls(module, 10) if name != "a flag" else None  # batch statistics change with each call
    assert engine.taken == 0


@torch.no_grad()
def test_an_engine_that_takes_none_is_given_none(recorded, install, engine_of):
    module = net()
    (graph,) = recorded(module, [(2, (X,), {})])
    engine = engine_of(copy.deepcopy(module))
    dispatcher = install(module, (graph, engine))
    module[0].weight.mul_(2)
    calls(module, 3 * WHILE)
    assert engine.calls == 0
    assert dispatcher.outdated


@torch.no_grad()
def test_each_of_two_engines_is_proven_with_a_call_of_its_own(recorded, install, copying):
    module = net()
    good, bad = copying(module), copying(module, wrong=True)
    (graph,), (other,) = (recorded(module, [(size, (torch.ones(size, 4),), {})]) for size in (2, 3))
    dispatcher = install(module, (graph, good), (other, bad))
    module[0].weight.mul_(2)
    calls(module, 2 * WHILE)
    assert (good.taken, bad.taken) == (1, 1)
    before = bad.calls
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), module._call_impl(x))
    assert bad.calls > before  # it was asked, to be compared
    before = (good.calls, bad.calls)
    for _ in range(10):
        module(x)
        module(X)
    assert (good.calls, bad.calls) == (before[0] + 10, before[1])
    assert dispatcher.stats.fallbacks["engine failed"] == 1


@torch.no_grad()
def test_threads_never_see_a_wrong_answer_while_weights_are_taken_over(tuned):
    module, _, engine = tuned()
    calls(module, 5)
    module[0].weight.mul_(2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(torch.no_grad()(calls), [module] * 4, [200] * 4))
    assert engine.taken == 1
    before = engine.calls
    calls(module, 50)
    assert engine.calls == before + 50
