"""Modules that a tune is not about may go at any moment, also in the middle of it."""

from __future__ import annotations

import gc
import weakref

import torch

import aitune.torch as ait
from aitune.torch.module.handle import living


def test_a_wrapped_module_that_nobody_holds_any_more_does_not_disturb_a_tune(model, samples, always):
    old = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    old.itself = [old]  # a cycle: only the collector ends it
    ait.Module(old, "old")
    gone = weakref.ref(old)
    del old

    def collecting(x):
        gc.collect()
        return wrapped(x)

    wrapped = ait.Module(model, "model", always())
    result = ait.tune(collecting, samples)
    assert list(result.modules) == ["model"]
    gc.collect()
    assert gone() is None


def test_the_living_are_held_as_long_as_somebody_looks_at_them():
    old = torch.nn.Linear(4, 4)
    ait.Module(old, "old")
    pairs = living()
    del old
    gc.collect()
    assert [handle.module for handle, module in pairs] == [module for _, module in pairs]
