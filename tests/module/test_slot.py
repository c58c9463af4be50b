"""The slot takes calls over and gives them back."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from aitune.torch.module.slot import Slot, current


@pytest.fixture
def linear():
    return torch.nn.Linear(2, 2)


def test_calls_go_to_what_is_installed_until_it_is_removed(linear):
    before = dict(linear.__dict__)
    slot = Slot(linear, current(linear))
    slot.install(lambda x: "taken")
    assert linear(torch.ones(1, 2)) == "taken"
    assert slot.installed is not None
    slot.remove()
    assert torch.is_tensor(linear(torch.ones(1, 2)))
    assert linear.__dict__ == before
    assert slot.installed is None


def test_the_original_runs_hooks(linear):
    seen = []
    linear.register_forward_hook(lambda *call: seen.append("hook"))
    slot = Slot(linear, current(linear))
    slot.install(lambda x: slot.original(x))
    linear(torch.ones(1, 2))
    assert seen == ["hook"]


def test_what_the_user_compiled_is_the_original_and_comes_back(linear):
    linear._compiled_call_impl = lambda x: "the user's"
    slot = Slot(linear, current(linear))
    slot.install(lambda x: slot.original(x))
    assert linear(torch.ones(1, 2)) == "the user's"
    slot.remove()
    assert linear(torch.ones(1, 2)) == "the user's"


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_are_plain_modules(linear, clone):
    Slot(linear, None).install(lambda x: "taken")
    assert torch.is_tensor(clone(linear)(torch.ones(1, 2)))
    assert linear(torch.ones(1, 2)) == "taken"
