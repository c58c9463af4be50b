"""Weights, children, adapters and flags that change after tuning: the next call is the changed module's."""

from __future__ import annotations

import copy
import logging
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from aitune.exceptions import AITuneError


class Deep(nn.Module):
    """150 linear layers: 300 state tensors."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(150))

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * layer(x).tanh()
        return x


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])

    forward = Deep.forward


X = torch.ones(2, 4)
MIDDLE = {"Deep": 77, "Small": 1}


def optimizer_step(make):
    def step(model, layer):
        optimizer = make(list(layer.parameters()))
        layer.weight.grad, layer.bias.grad = torch.ones_like(layer.weight), torch.ones_like(layer.bias)
        optimizer.step()

    return step


@torch.no_grad()
def copy_in_place(model, layer):
    layer.weight.copy_(layer.weight + 1)


def whole(assign):
    def load(model, layer):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        key = next(name for name, module in model.named_modules() if module is layer) + ".weight"
        state[key] += 1
        model.load_state_dict(state, assign=assign)

    return load


AT_ONCE = {
    "in place": copy_in_place,
    "load_state_dict": whole(False),
    "load_state_dict, assign": whole(True),
    "load_state_dict of the layer": lambda m, layer: layer.load_state_dict(
        {"weight": layer.weight + 1, "bias": layer.bias}
    ),
    "SGD": optimizer_step(lambda p: torch.optim.SGD(p, lr=1.0)),
    "SGD, foreach": optimizer_step(lambda p: torch.optim.SGD(p, lr=1.0, foreach=True)),
    "Adam": optimizer_step(lambda p: torch.optim.Adam(p, lr=1.0)),
    "Adam, foreach": optimizer_step(lambda p: torch.optim.Adam(p, lr=1.0, foreach=True)),
    "another parameter": lambda m, layer: setattr(layer, "weight", nn.Parameter(torch.eye(4))),
    "another child": lambda m, layer: m.layers.__setitem__(list(m.layers).index(layer), nn.Linear(4, 4)),
    "a parametrization": lambda m, layer: nn.utils.parametrizations.weight_norm(
        layer
    ).parametrizations.weight.original0.data.mul_(3),
    "nn.init": lambda m, layer: nn.init.ones_(layer.weight),
    "pruning": lambda m, layer: prune.l1_unstructured(layer, "weight", 8),
    "spectral norm": lambda m, layer: nn.utils.spectral_norm(layer),
}
LATER = {
    "vector_to_parameters": lambda m, layer: nn.utils.vector_to_parameters(torch.ones(20), layer.parameters()),
    "Adam, fused": optimizer_step(lambda p: torch.optim.Adam(p, lr=1.0, fused=True)),
    "SGD, fused": optimizer_step(lambda p: torch.optim.SGD(p, lr=1.0, fused=True)),
    ".data.copy_": lambda m, layer: layer.weight.data.copy_(torch.eye(4)),
    ".data =": lambda m, layer: setattr(layer.weight, "data", torch.eye(4)),
    ".data +=": lambda m, layer: setattr(layer.weight, "data", layer.weight.data.add(1)),
    "numpy": lambda m, layer: layer.weight.detach().numpy().fill(3),
    "another forward below": lambda m, layer: setattr(layer, "forward", lambda x: x * 3),
    "one middle layer cast": lambda m, layer: (
        layer.bfloat16(),
        layer.register_forward_pre_hook(lambda mod, a: (a[0].bfloat16(),)),
    ),
}


@pytest.mark.parametrize("kind", [Small, Deep])
@pytest.mark.parametrize("change", AT_ONCE)
def test_the_very_next_call_has_the_new_weights(serve, frozen, kind, change):
    model = kind().eval()
    handle = serve(model, frozen, X)
    old = model(X)
    AT_ONCE[change](model, model.layers[MIDDLE[kind.__name__]])
    new = model(X)
    assert torch.equal(new, model._call_impl(X))
    assert not torch.equal(new, old)
    assert handle.stats.engine_calls == {"Frozen()": 1}


@pytest.mark.parametrize("kind", [Small, Deep])
@pytest.mark.parametrize("change", LATER)
def test_what_no_counter_tells_is_seen_within_50_calls(serve, frozen, kind, change):
    model = kind().eval()
    serve(model, frozen, X)
    old = model(X)
    LATER[change](model, model.layers[MIDDLE[kind.__name__]])
    for _ in range(50):
        new = model(X)
    assert torch.equal(new, model._call_impl(X))
    assert not torch.equal(new, old)


WRITES = {
    "contiguous": torch.zeros(4, 4),
    "transposed": torch.zeros(4, 5).t()[:4],
    "a view with an offset": torch.zeros(40)[7:23].view(4, 4),
    "channels last": torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "expanded": torch.zeros(1, 4).expand(4, 4),
    "one bfloat16": torch.zeros(1, dtype=torch.bfloat16),
    "one bool": torch.zeros(1, dtype=torch.bool),
    "a number": torch.zeros(()),
    "double": torch.zeros(3, dtype=torch.float64),
}


class Holder(nn.Module):
    def __init__(self, value, kind):
        super().__init__()
        self.inner = nn.Module()
        if kind == "buffer":
            self.inner.register_buffer("value", value)
        elif kind == "parameter":
            self.inner.value = nn.Parameter(value, requires_grad=False)
        else:
            self.inner.__dict__["value"] = value

    def forward(self, x):
        return x + self.inner.value.float().sum()


@pytest.mark.parametrize("kind", ["buffer", "parameter", "attribute"])
@pytest.mark.parametrize("layout", WRITES)
def test_writes_through_data_are_seen_for_every_layout(serve, frozen, kind, layout):
    model = Holder(WRITES[layout].clone(memory_format=torch.preserve_format), kind).eval()
    serve(model, frozen, X)
    model(X)
    model.inner.value.data.fill_(1)
    for _ in range(50):
        new = model(X)
    assert torch.equal(new, model._call_impl(X))


def test_inference_tensors_as_weights_have_no_counter_and_are_read(serve, frozen):
    with torch.inference_mode():
        model = Small().eval()
    serve(model, frozen, X)
    with torch.inference_mode():
        model(X)
        model.layers[1].weight.fill_(2)
        for _ in range(50):
            new = model(X)
        assert torch.equal(new, model._call_impl(X))


def test_one_graph_with_an_engine_beside_one_without_notices_as_well(model_of_two_graphs):
    model, handle = model_of_two_graphs
    assert handle.stats.engine_calls == {}
    model(X)
    assert sum(handle.stats.engine_calls.values()) == 1
    with torch.no_grad():
        model.inner.weight.add_(1)
    assert torch.equal(model(X), model._call_impl(X))


@pytest.fixture
def model_of_two_graphs(serve, frozen):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, thing=None):
            return self.inner(x)

    model = Two().eval()
    return model, serve(model, frozen, (X,), (X, object()))


def test_changed_weights_are_told_once_and_retune_takes_them_over(tune, frozen, caplog):
    model = Small().eval()
    handle = tune(model, frozen, X)
    copy_in_place(model, model.layers[1])
    with caplog.at_level(logging.INFO, logger="aitune"):
        for _ in range(5):
            model(X)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "retune()" in caplog.text
    handle.retune()
    model(X)
    assert handle.stats.engine_calls == {"Frozen()": 1}
    assert frozen.open_engines == 1


def test_running_statistics_that_move_in_training_are_the_next_answers(serve, frozen):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    serve(model, frozen, X)
    model.train()(torch.randn(16, 4))
    model.eval()
    assert torch.equal(model(X), model._call_impl(X))


def test_tied_weights_stay_tied_and_are_watched_once_for_all(serve, frozen):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    model = Tied().eval()
    handle = serve(model, frozen, X)
    model(X)
    assert model.first.weight is model.second.weight
    copy_in_place(model, model.second)
    assert torch.equal(model(X), model._call_impl(X))
    other = copy.deepcopy(model)
    assert other.first.weight is other.second.weight
    assert handle.stats.engine_calls == {"Frozen()": 1}


NORMS = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
}


@pytest.mark.parametrize("norm", NORMS)
def test_reparametrized_layers_are_right_before_and_after_their_weights_change(serve, frozen, norm):
    model = nn.Sequential(NORMS[norm](nn.Linear(4, 4)), nn.ReLU()).eval()
    serve(model, frozen, X)
    assert torch.equal(model(X), model._call_impl(X))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.25)
    assert torch.equal(model(X), model._call_impl(X))


def test_layers_whose_hooks_make_their_weights_are_left_alone(tune, frozen):
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.ReLU()).eval()
    with pytest.raises(AITuneError, match="hooks"):
        tune(model, frozen, X)
    with torch.no_grad():
        model[0].weight_orig.mul_(2)
        assert torch.equal(model(X), model._call_impl(X))


def test_functional_call_and_stacked_parameters_run_the_weights_that_they_bring(serve, frozen):
    model = Deep().eval()
    handle = serve(model, frozen, X)
    name = "layers.77.weight"
    brought = {name: torch.eye(4)}
    expected = torch.func.functional_call(copy.deepcopy(model), brought, (X,))
    assert torch.equal(torch.func.functional_call(model, brought, (X,)), expected)
    model(X)
    assert handle.stats.engine_calls == {"Frozen()": 1}


def test_attributes_of_the_module_are_seen_within_50_calls_and_its_flags_at_once(serve, frozen):
    class Gain(nn.Module):
        gain = 1.0

        def forward(self, x):
            return x * self.gain * (2 if self.training else 1)

    model = Gain().eval()
    model.known = 1
    serve(model, frozen, X)
    model.gain = 3.0
    for _ in range(50):
        answer = model(X)
    assert torch.equal(answer, X * 3)
    model.train()
    assert torch.equal(model(X), X * 6)


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act, self.settings = nn.Linear(4, 4), torch.tanh, types.SimpleNamespace(scale=1.0)

    def forward(self, x):
        return self.act(self.linear(x)) * self.settings.scale


OBJECTS = {
    "a function": lambda m: setattr(m, "act", torch.relu),
    "settings": lambda m: setattr(m, "settings", types.SimpleNamespace(scale=5.0)),
}


@pytest.mark.parametrize("change", OBJECTS)
def test_a_function_or_settings_put_in_anothers_place_are_seen_at_once(serve, frozen, change):
    model = Activated().eval()
    handle = serve(model, frozen, X)
    old = model(X)
    OBJECTS[change](model)
    assert torch.equal(model(X), model._call_impl(X))
    assert not torch.equal(model(X), old)
    assert handle.stats.engine_calls == {"Frozen()": 1}


@pytest.mark.parametrize("change", OBJECTS)
def test_below_the_module_they_are_seen_within_50_calls(serve, frozen, change):
    model = nn.Sequential(Activated()).eval()
    serve(model, frozen, X)
    model(X)
    OBJECTS[change](model[0])
    for _ in range(50):
        new = model(X)
    assert torch.equal(new, model._call_impl(X))
