"""Arguments of every kind: recorded without harm, and answered as eager does."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import OrderedDict, UserDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.tree import flatten
from aitune.torch.module.recording import MAX_GRAPHS, Recording
from aitune.torch.module.slot import Slot

X = torch.arange(6.0).reshape(2, 3)


class Anything(torch.nn.Module):
    def forward(self, value, *, other=None):
        return [leaf * 2 if isinstance(leaf, torch.Tensor) else leaf for leaf in flatten(value)[0]]


class Shade(enum.Enum):
    DARK = 1


class Count(enum.IntEnum):
    ONE = 1


class Tagged(dict):
    def __init__(self, tag, **items):
        super().__init__(items)
        self.tag = tag


@dataclasses.dataclass
class Options:
    x: torch.Tensor
    kind: str = "a"


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: torch.Tensor


def with_attribute(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


SERVED = {
    "0-d": torch.tensor(3.0),
    "complex": torch.view_as_complex(torch.ones(3, 2)),
    "integers": torch.arange(3),
    "bools": torch.tensor([True, False]),
    "half": X.half(),
    "not contiguous": X.t(),
    "channels last": torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "an offset into a storage": torch.ones(10)[3:7],
    "one tensor twice": [X, X],
    "views of one another": [X, X[0]],
    "a parameter": torch.nn.Parameter(X, requires_grad=False),
    "an enum": [X, Shade.DARK],
    "an integer enum": [X, Count.ONE],
    "plain values": [X, None, True, 1, 1.5, "text", b"bytes", 2j, ..., torch.float32, torch.device("cpu"), X.shape][:8],
    "torch's own values": [X, torch.float32, torch.device("cpu"), torch.strided, X.shape, range(3)],
    "numpy scalars": [X, np.float32(1.5), np.int64(3), np.bool_(True)],
    "a function": [X, torch.relu, Shade][:1],
    "a type": [X, Shade],
    "an ordered dict": OrderedDict(b=X, a=X),
    "a dict of numbers": {1: X, 2.0: X, None: X},
    "a default dict": defaultdict(list, x=X),
    "a user's mapping": UserDict(x=X),
    "a mapping with an attribute": Tagged("tag", x=X),
    "a batch of a tokenizer": BatchEncoding({"ids": X}),
    "a dataclass": Options(X),
    "a dataclass with an attribute": with_attribute(Options(X), more=3),
    "a dataclass with slots": Slotted(X),
    "a model output": BaseModelOutput(last_hidden_state=X, hidden_states=(X, X)),
    "return types": torch.max(X, 1),
    "nothing": [X, [], (), {}, [[]]],
}


@pytest.mark.parametrize("name", SERVED)
def test_what_an_engine_can_take_reaches_it_in_every_call(recorded, install, engine_of, name):
    value, module = SERVED[name], Anything().eval()
    (graph,) = recorded(module, [(None, (value,), {}), (None, (value,), {"other": None})])
    assert not graph.inputs.opaque
    engine = engine_of(module.forward, live_weights=True)
    dispatcher = install(module, (graph, engine))
    assert same(module(value), module._call_impl(value))
    assert engine.calls == 1
    rebuilt, _ = graph.call([tensor.clone() for tensor in graph.input_tensors((value,), {})])
    assert type(rebuilt[0]) is type(value) or isinstance(value, torch.nn.Parameter)
    assert same(module(*rebuilt), module._call_impl(value))
    assert engine.calls == 2, dispatcher.stats


class Angry:
    def __getattr__(self, name):
        raise RuntimeError("do not look")


class Unreadable(dict):
    def __iter__(self):
        raise RuntimeError("do not iterate")


class Rootless(UserDict):
    def __init__(self, only, argument):
        super().__init__({"x": only})


def fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(2, 3)


LEFT_ALONE = {
    "a numpy array": lambda: [X, np.ones(3)],
    "a generator": lambda: [X, (i for i in range(3))],
    "a set": lambda: [X, {1, 2}],
    "a module": lambda: [X, torch.nn.ReLU()],
    "a sparse tensor": lambda: X.to_sparse(),
    "a compressed tensor": lambda: X.to_sparse_csr(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a quantised tensor": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "a subclass": lambda: X.as_subclass(type("Sub", (torch.Tensor,), {})),
    "a fake tensor": fake,
    "an object that refuses": lambda: [X, Angry()],
    "a mapping that refuses": lambda: [X, Unreadable(x=X)],
    "a mapping with a tensor beside its items": lambda: with_attribute(Tagged("tag", x=X), hidden=X),
    "a dataclass with a tensor beside its fields": lambda: with_attribute(Options(X), hidden=X),
    "a mapping that cannot be made again": lambda: Rootless(X, 3),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning", "ignore:Sparse CSR.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz.*", "ignore:.*FakeTensor.*")
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_no_engine_can_take_is_answered_by_the_original(recorded, install, engine_of, name):
    seen = []

    class Noting(torch.nn.Module):
        def forward(self, value):
            seen.append(value)
            return 3

    value, module = LEFT_ALONE[name](), Noting().eval()
    graphs = recorded(module, [(None, (value,), {})])
    assert all(graph.inputs.opaque for graph in graphs)
    assert seen.pop() is value
    (graph,) = recorded(module, [(None, (X,), {})])  # and where another graph has an engine
    seen.clear()
    dispatcher = install(module, (graph, engine_of(lambda value: "engine")))
    assert module(value) == 3
    assert seen.pop() is value
    assert dispatcher.stats.calls == sum(dispatcher.stats.fallbacks.values()) == 1
    assert module(X) == "engine"


TOLD_APART = {
    "key types": ({1: X}, {True: X}, {1.0: X}),
    "key order": ({"a": X, "b": X}, {"b": X, "a": X}),
    "zeros": ([X, 0.0], [X, -0.0], [X, 0], [X, False], [X, 0j], [X, -0j], [X, np.float32(0)], [X, np.float64(0)]),
    "not numbers": ([X, float("nan")], [X, complex("nan")], [X, np.float32("nan")]),
    "strings": ([X, "1"], [X, b"1"], [X, 1], [X, Count.ONE]),
    "attributes": (Tagged("a", x=X), Tagged("b", x=X), Tagged(1, x=X), {"x": X}),
    "fields": (Options(X), Options(X, "b"), with_attribute(Options(X), more=1)),
    "sizes and tuples": ([X, X.shape], [X, tuple(X.shape)]),
    "containers": ([X], (X,), {"x": X}, OrderedDict(x=X), UserDict(x=X), [[X]]),
    "dtypes": (X, X.double(), X.long(), X.bool(), X.to(torch.complex64)),
    "ranks": (X, X[0], X[0, 0], X[None]),
}


@pytest.mark.parametrize("name", TOLD_APART)
def test_calls_that_mean_something_else_are_graphs_of_their_own(recorded, install, engine_of, name):
    module, values = Anything().eval(), TOLD_APART[name]
    graphs = recorded(module, [(None, (value,), {}) for value in (*values, *values)])
    assert len(graphs) == len(values)
    install(module, *((graph, engine_of(lambda *a, _i=i, **k: _i)) for i, graph in enumerate(graphs)))
    assert [module(value) for value in values] == list(range(len(values)))


def test_arguments_that_are_nested_in_another_way_at_each_call_do_not_multiply_graphs(monkeypatch):
    module = Anything()
    recording, slot = Recording(CallSignature.of(module.forward)), Slot(module, None)
    for length in range(MAX_GRAPHS + 10):
        assert len(recording.call(slot, [X] * length)) == length
    assert len(recording.observations) == MAX_GRAPHS
    assert list(recording.not_recorded.values()) == [10]


def test_a_tensor_is_read_through_a_cached_property_only_by_the_original(recorded, install, engine_of):
    @dataclasses.dataclass
    class Lazy:
        x: torch.Tensor

        @functools.cached_property
        def twice(self):
            return self.x * 2

    module, fresh, used = Anything().eval(), Lazy(X), Lazy(X)
    (graph,) = recorded(module, [(None, (fresh,), {})])
    install(module, (graph, engine_of(lambda value: "engine")))
    assert module(fresh) == "engine"
    assert used.twice is used.twice
    assert module(used) != "engine"


def test_what_holds_itself_is_answered_and_not_recorded():
    class Same(torch.nn.Module):
        def forward(self, value):
            return value

    circle: list = [X]
    circle.append(circle)
    module = Same()
    recording, slot = Recording(CallSignature.of(module.forward)), Slot(module, None)
    assert recording.call(slot, circle) is circle
    module.forward = lambda value: circle
    assert recording.call(slot, X) is circle
    assert recording.observations == ()
    assert len(recording.not_recorded) == 2


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(one) is type(two) and one.dtype is two.dtype and torch.equal(one, two)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and (one is two or one == two)
