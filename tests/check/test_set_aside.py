"""Memory of a module's tensors that is given away and comes back."""

from __future__ import annotations

import torch
from torch import nn

from aitune.torch.check.set_aside import SetAside


def large():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 512), nn.Linear(512, 1024, bias=False))


def size(tensor):
    return tensor.untyped_storage().nbytes()


def test_values_come_back_to_a_tensor_and_to_what_shares_its_memory():
    module = large()
    weight = module[0].weight
    alias, turned, wanted, version = weight.detach(), weight.data.t(), weight.detach().clone(), weight._version
    aside = SetAside(module, [])

    aside.put(weight)
    assert size(weight) == size(alias) == 0
    aside.bring_back()

    assert torch.equal(weight, wanted)
    assert torch.equal(alias, wanted)
    assert torch.equal(turned, wanted.t())
    assert weight._version == version
    assert weight.data_ptr() == alias.data_ptr()


def test_memory_that_something_else_uses_stays():
    module = large()
    module[1].register_buffer("view", module[1].weight.detach()[:2])
    seen = module[0].weight.detach()
    aside = SetAside(module, [seen])

    for tensor in (module[0].weight, module[1].weight, module[0].bias):
        before = size(tensor)
        aside.put(tensor)
        assert size(tensor) == before > 0


def test_bringing_back_twice_changes_nothing():
    module = large()
    aside = SetAside(module, [])
    aside.put(module[0].weight)
    aside.bring_back()
    with torch.no_grad():
        module[0].weight.fill_(2.0)

    aside.bring_back()
    assert bool((module[0].weight == 2.0).all())


def test_an_empty_tensor_and_one_without_memory_are_left_alone():
    module = nn.Linear(4, 4, device="meta")
    aside = SetAside(module, [])
    aside.put(module.weight)
    aside.put(torch.empty(0))
    aside.bring_back()
    assert module.weight.device.type == "meta"
