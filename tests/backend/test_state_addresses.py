"""Where a module's tensors lie is noticed; what they hold is not."""

import torch
from torch import nn

from aitune.torch.backend.state_addresses import StateAddresses


def looked_at(addresses, calls=20):
    """Whether nothing shows in so many looks, which reach every tensor."""
    return all(addresses.kept for _ in range(calls))


def test_values_may_change_in_place():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    addresses = StateAddresses(module)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1)
    assert looked_at(addresses)


def test_a_tensor_that_is_replaced_or_moved_shows():
    def replaced(module):
        module[0].bias = nn.Parameter(torch.zeros(3))

    def moved(module):
        module[0].weight.data = torch.zeros(3, 3)

    def cast(module):
        module.double()

    def loaded(module):
        module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()}, assign=True)

    def attribute(module):
        module[0].table = torch.zeros(2)

    for change in (replaced, moved, cast, loaded, attribute):
        module = nn.Sequential(nn.Linear(3, 3))
        module[0].table = torch.ones(2)
        addresses = StateAddresses(module)
        assert looked_at(addresses)
        kept = [tensor.detach() for tensor in (*module.parameters(), module[0].table)]  # so that no address comes back
        change(module)
        assert not addresses.kept, change.__name__
        assert kept


def test_every_tensor_of_many_is_looked_at_in_turn():
    module = nn.Sequential(*[nn.Linear(1, 1) for _ in range(100)])
    addresses = StateAddresses(module)
    assert looked_at(addresses)
    module[50].weight = nn.Parameter(torch.zeros(1, 1))
    assert not looked_at(addresses)
    module[99].bias = nn.Parameter(torch.zeros(1))
    assert not addresses.kept, "the last one is looked at in every call"


def test_no_module_has_no_state():
    assert looked_at(StateAddresses(None))
