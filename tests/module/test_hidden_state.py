"""What a forward reads and torch does not list: it is watched too."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

X = torch.ones(2, 4)


class Hidden(nn.Module):
    """Reads modules and tensors in lists and dicts, a config object, class attributes and slots that are None."""

    power = 1.0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.register_parameter("gain", None)
        self.register_buffer("offset", None)
        self.layers = [nn.Linear(4, 4), {"deep": [nn.Linear(4, 4)]}]
        self.tables = {"first": [torch.ones(4)], 2: torch.ones(4)}
        self.config = types.SimpleNamespace(scale=2.0, steps=[1])
        self.weights = [1.0, 2.0]
        self.inner.factor = {"a": 1.0}

    def forward(self, x):
        x = self.layers[1]["deep"][0](self.layers[0](self.inner(x)))
        x = x * self.tables["first"][0] + self.tables[2]
        x = x * self.config.scale * self.weights[0] * self.inner.factor["a"] * self.power
        if self.gain is not None:
            x = x * self.gain
        if self.offset is not None:
            x = x + self.offset
        return x + getattr(self, "extra", 0.0)


@torch.no_grad()
def in_place(tensor):
    tensor.mul_(3)


def other_forward(model):
    model.inner.__class__ = type("Tripled", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) * 3})


AT_ONCE = {
    "a weight of a module in a list": lambda m: in_place(m.layers[0].weight),
    "a weight deep in containers": lambda m: in_place(m.layers[1]["deep"][0].weight),
    "another module in a list": lambda m: m.layers[1]["deep"][0].load_state_dict(nn.Linear(4, 4).state_dict()),
    "a tensor in a list in a dict": lambda m: in_place(m.tables["first"][0]),
    "another tensor in a list": lambda m: m.tables["first"].__setitem__(0, torch.zeros(4)),
    "another tensor in a dict": lambda m: m.tables.__setitem__(2, torch.zeros(4)),
    "a parameter that was None": lambda m: setattr(m, "gain", nn.Parameter(torch.full((4,), 3.0))),
    "a buffer that was None": lambda m: setattr(m, "offset", torch.ones(4)),
    "a bias that was None": lambda m: setattr(m.inner, "bias", nn.Parameter(torch.ones(4))),
    "a tensor taken out": lambda m: m.tables.update({2: 5.0}),
}
LATER = {
    "a config value": lambda m: setattr(m.config, "scale", 5.0),
    "a value in a list": lambda m: m.weights.__setitem__(0, 5.0),
    "a value in a dict of a child": lambda m: m.inner.factor.update(a=5.0),
    "a class attribute hidden": lambda m: setattr(m, "power", 5.0),
    "a new attribute": lambda m: setattr(m, "extra", 5.0),
    "another class of a child": other_forward,
}


def changed(serve, frozen, change, calls):
    model = Hidden().eval()
    handle = serve(model, frozen, X)
    old = model(X)
    assert sum(handle.stats.engine_calls.values()) == 1
    change(model)
    for _ in range(calls):
        new = model(X)
    assert torch.equal(new, model._call_impl(X))
    assert not torch.equal(new, old)


@pytest.mark.parametrize("change", AT_ONCE)
def test_hidden_tensors_and_modules_are_seen_at_the_next_call(serve, frozen, change):
    changed(serve, frozen, AT_ONCE[change], 1)


@pytest.mark.parametrize("change", LATER)
def test_hidden_values_are_seen_within_50_calls(serve, frozen, change):
    changed(serve, frozen, LATER[change], 50)


def test_a_forward_that_is_replaced_on_the_class_is_seen_within_50_calls(serve, frozen, monkeypatch):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, x):
            return self.part(x)

    class Part(nn.Module):
        def forward(self, x):
            return x * 2

    for kind, value in ((Part, 3.0), (Own, 7.0)):
        model = Own().eval()
        serve(model, frozen, X)
        with monkeypatch.context() as patch:
            patch.setattr(kind, "forward", lambda self, x, value=value: x * value)
            for _ in range(50):
                answer = model(X)
            assert torch.equal(answer, X * value)


def test_a_default_dtype_or_a_function_mode_of_the_caller_is_the_originals(serve, frozen):
    class Making(nn.Module):
        def forward(self, x):
            return torch.ones(2) + x.shape[0]

    model = Making().eval()
    handle = serve(model, frozen, X)
    torch.set_default_dtype(torch.float64)
    try:
        assert model(X).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)

    class Counting(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    with Counting() as mode:
        eager = model._call_impl(X)
        seen = mode.calls
        assert torch.equal(model(X), eager)
    assert mode.calls >= 2 * seen
    with torch.device("meta"):
        assert model(X).device.type == "meta"
    assert handle.stats.engine_calls == {}
    assert handle.stats.fallbacks == {"default dtype or function mode": 3}
    assert model(X).dtype is torch.float32
    assert sum(handle.stats.engine_calls.values()) == 1
