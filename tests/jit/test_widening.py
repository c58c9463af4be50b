"""Sizes that come after the tune are answered by the original first, and by an engine later."""

from __future__ import annotations

import copy

import torch

import aitune.torch as ait


def test_a_module_is_tuned_anew_for_sizes_that_come_again_and_again(jit, net, steps):
    eager = copy.deepcopy(net)
    with torch.no_grad():
        net(torch.ones(2, 4))
        for rows in (3, 5, 4, 3, 5, 4, 5, 2):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(net(x), eager._call_impl(x))
        assert any("again: 3 calls came" in step for step in steps())
        stats = ait.handle(net).stats
        assert not stats.fallbacks
        for rows in (2, 3, 4, 5):
            net(torch.randn(rows, 4))
    assert sum(ait.handle(net).stats.engine_calls.values()) >= 4


def test_a_structure_that_comes_later_gets_an_engine_of_its_own(jit, net):
    class Two(type(net)):
        def forward(self, x, y=None):
            return super().forward(x if y is None else x + y)

    two = Two().eval()
    with torch.no_grad():
        two(torch.ones(2, 4))
        for _ in range(8):
            two(torch.ones(2, 4), torch.ones(2, 4))
        before = sum(ait.handle(two).stats.engine_calls.values())
        two(torch.ones(2, 4), torch.ones(2, 4))
        two(torch.ones(2, 4))
    assert sum(ait.handle(two).stats.engine_calls.values()) == before + 2
