"""Routing against a slow, obviously right router, over generated forwards, nested arguments, calls and sizes."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import random
from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aitune.torch.graph.accessor import (
    compile_call,
    compile_forward,
    compile_output,
    compile_output_accessor,
)
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.miss import find_route
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.route import Route, compile_route
from aitune.torch.module.slot import Slot

CALLS_A_CASE = 20

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Options:
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    only: Any


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


class Extended(dict):
    """A mapping that torch does not know."""


# ------------------------------------------------------------------------------------------ the slow router


def described(value: Any) -> Any:
    """Return what two arguments of one graph have in common, written out."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return "tensor", value.dtype, value.dim()
    if dataclasses.is_dataclass(value):
        return type(value), [(f.name, described(getattr(value, f.name))) for f in dataclasses.fields(value)]
    if isinstance(value, (dict, UserDict)):
        return type(value), [(type(key), key, described(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(item) for item in value]
    return type(value), repr(value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, (dict, UserDict)):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


class SlowRouter:
    """Decides by looking at everything that was recorded: ``recorded`` holds batch size and bound arguments."""

    def __init__(self, recorded):
        self.graphs = []
        for batch, arguments in recorded:
            for description, calls in self.graphs:
                if description == described(arguments):
                    calls.append((batch, self.sizes(arguments)))
                    break
            else:
                self.graphs.append((described(arguments), [(batch, self.sizes(arguments))]))

    @staticmethod
    def sizes(arguments):
        """Return size and axis of every axis of every tensor."""
        return [(size, axis) for tensor in tensors_in(arguments) for axis, size in enumerate(tensor.shape)]

    def graph_of(self, arguments):
        for index, (description, calls) in enumerate(self.graphs):
            if description == described(arguments):
                fits = self.fits(calls, [size for size, _ in self.sizes(arguments)])
                return index if fits and not any(t.requires_grad for t in tensors_in(arguments)) else None
        return None

    def fits(self, calls, sizes):
        batches = [batch for batch, _ in calls]
        histories = [[seen[place][0] for _, seen in calls] for place in range(len(sizes))]
        axes = [axis for _, axis in calls[0][1]]
        varies = [len(set(history)) > 1 and max(history) > 1 for history in histories]
        for history, varying, size in zip(histories, varies, sizes, strict=True):
            if varying and not max(1, min(history)) <= size <= max(history):
                return False
            if not varying and size != max(history):
                return False
        a_sample = [
            self.entries_a_sample(history, batches, [a for h, a in zip(histories, axes, strict=True) if h == history])
            for history in histories
        ]
        for i in range(len(sizes)):
            if varies[i] and a_sample[i] and sizes[i] % a_sample[i]:
                return False
        for i, j in itertools.combinations([i for i in range(len(sizes)) if varies[i]], 2):
            if histories[i] == histories[j] and sizes[i] != sizes[j]:
                return False
            if a_sample[i] and a_sample[j] and sizes[i] * a_sample[j] != sizes[j] * a_sample[i]:
                return False
            one_ratio = len({a / b if b else None for a, b in zip(histories[i], histories[j], strict=True)}) == 1
            if not a_sample[i] and not a_sample[j] and one_ratio and len(set(histories[i])) > 2:
                first, second = max(histories[i]), max(histories[j])
                if sizes[i] * second != sizes[j] * first:
                    return False
        return True

    @staticmethod
    def entries_a_sample(history, batches, axes):
        """Return how many entries of an axis belong to one sample, None if it is no axis of batches."""
        ratios = {size / batch for size, batch in zip(history, batches, strict=True)}
        if len(set(batches)) < 2 or len(ratios) != 1 or not ratios.copy().pop().is_integer():
            return None
        ratio = int(ratios.pop())
        proven = ratio == 1 or 0 in axes or len(set(batches)) > 2
        return ratio if proven else None


# -------------------------------------------------------------------------------------- what is generated


class Generator:
    """Makes forwards, and calls of them. A tensor is sized by names, so that calls of any size can be made."""

    def __init__(self, chance: random.Random):
        self.chance = chance
        self.dims = ["b", "bb", "l", "m", 1, 3, 4]

    def leaf(self):
        chance = self.chance
        if chance.random() < 0.55:
            shape = [chance.choice(self.dims) for _ in range(chance.randrange(0, 3))]
            if chance.random() < 0.5:
                shape.insert(0, "b")
            return "tensor", chance.choice([torch.float32, torch.float32, torch.int64, torch.bool]), tuple(shape)
        return "constant", chance.choice(
            [None, True, False, 0, 1, 1.0, 0.0, -0.0, float("nan"), "a", "it's", Shade.DARK, torch.float32, 2j]
        )

    def tree(self, depth=2):
        chance = self.chance
        if depth == 0 or chance.random() < 0.45:
            return self.leaf()
        kind = chance.choice([list, tuple, dict, OrderedDict, UserDict, Extended, Pair, Options, Frozen, "int keys"])
        count = {Pair: 2, Options: 2, Frozen: 1}.get(kind, chance.randrange(0, 4))
        return "node", kind, [self.tree(depth - 1) for _ in range(count)]

    def signature(self):
        """Return parameters as (name, kind, template, has default)."""
        chance, parameters = self.chance, []
        names = iter(["type", "x", "len", "y", "options", "z", "mask", "torch", "w"])
        kinds = [("positional only", chance.randrange(0, 2)), ("either", chance.randrange(0, 3))]
        kinds += [
            ("*", chance.randrange(0, 2)),
            ("keyword only", chance.randrange(0, 3)),
            ("**", chance.randrange(0, 2)),
        ]
        defaults = False
        for kind, count in kinds:
            for _ in range(count):
                defaults = kind in ("positional only", "either", "keyword only") and (
                    (defaults and kind != "keyword only") or chance.random() < 0.3
                )
                template = self.leaf_constant() if defaults and chance.random() < 0.6 else self.tree()
                parameters.append((next(names), kind, template, defaults))
        return parameters or [("x", "either", ("tensor", torch.float32, ("b", "l")), False)]

    def leaf_constant(self):
        return "constant", self.chance.choice([None, 1.0, "a", 3, True])

    def make(self, template, sizes, odd=0.0):
        """Make a value; each part is with probability ``odd`` not what the template says."""
        chance = self.chance
        if odd and chance.random() < odd:
            template = self.tree(1) if chance.random() < 0.7 else template
            sizes = {name: chance.randrange(0, 9) for name in sizes}
        if template[0] == "constant":
            return template[1]
        if template[0] == "tensor":
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in template[2]]
            if odd and shape and chance.random() < odd:
                shape[chance.randrange(len(shape))] = chance.randrange(0, 9)
            dtype = template[1]
            if odd and chance.random() < odd:
                dtype = chance.choice([torch.float64, torch.float32, torch.int64])
            value = torch.randint(0, 2, shape).to(dtype)
            if odd and chance.random() < odd / 2:
                value = torch.nn.Parameter(value, requires_grad=value.is_floating_point() and chance.random() < 0.5)
            return value
        _, kind, children = template
        items = [self.make(child, sizes, odd) for child in children]
        if odd and chance.random() < odd:
            kind = chance.choice([list, tuple, dict, OrderedDict, UserDict])
        if kind is list or kind is tuple:
            return kind(items)
        keys = list(range(len(items))) if kind == "int keys" else ["a", "it's", "c", "d"][: len(items)]
        if kind in (dict, OrderedDict, UserDict, Extended, "int keys"):
            pairs = list(zip(keys, items, strict=True))
            if odd and chance.random() < odd:
                chance.shuffle(pairs)
                pairs = pairs[: chance.randrange(0, 5)]
            return (dict if kind == "int keys" else kind)(pairs)
        return kind(*items)

    def call(self, parameters, sizes, odd=0.0):
        """Make a call in any legal form; a parameter with a default may be left out."""
        chance, args, kwargs = self.chance, [], {}
        by_name = False
        for name, kind, template, has_default in parameters:
            if kind == "*":
                if not by_name:
                    args += [self.make(template, sizes, odd) for _ in range(2)]
                continue
            if kind == "**":
                kwargs["more"] = self.make(template, sizes, odd)
                continue
            left_out = has_default and chance.random() < 0.5
            if kind == "positional only":
                if not by_name and not left_out:
                    args.append(self.make(template, sizes, odd))
                by_name = by_name or left_out
                continue
            value = self.make(template, sizes, odd)
            by_name = by_name or left_out or kind == "keyword only" or chance.random() < 0.3
            if not left_out:
                if by_name:
                    kwargs[name] = value
                else:
                    args.append(value)
        keywords = list(kwargs.items())
        chance.shuffle(keywords)
        return tuple(args), dict(keywords)


def forward_source(parameters) -> str:
    """Return the source of a forward that returns its arguments by name."""
    parts, previous = [], None
    for name, kind, _, has_default in parameters:
        if previous == "positional only" and kind != previous:
            parts.append("/")
        if kind == "keyword only" and previous not in ("*", "keyword only"):
            parts.append("*")
        stars = kind if kind in ("*", "**") else ""
        parts.append(f"{stars}{name}{f'=_defaults[{name!r}]' if has_default else ''}")
        previous = kind
    if previous == "positional only":
        parts.append("/")
    named = ", ".join(f"{name!r}: {name}" for name, *_ in parameters)
    return f"def forward(self, {', '.join(parts)}):\n    return _answer({{{named}}})"


def module_of(parameters, generator, answer) -> torch.nn.Module:
    sizes = {"b": 2, "bb": 4, "l": 3, "m": 6}
    defaults = {name: generator.make(template, sizes) for name, _, template, has in parameters if has}
    scope: dict[str, Any] = {"_defaults": defaults, "_answer": answer}
    exec(forward_source(parameters), scope)
    return type("Generated", (torch.nn.Module,), {"forward": scope["forward"]})().eval()


def recorded_calls(generator, parameters, module):
    """Make calls of some sizes while recording; return the recording and what was recorded."""
    chance = generator.chance
    recording = Recording(CallSignature.of(module.forward))
    slot, calls = Slot(module, None), []
    free = chance.random() < 0.5
    for _ in range(chance.randrange(1, 5)):
        batch, length = chance.randrange(1, 5), chance.randrange(1, 7)
        sizes = {"b": batch, "bb": 2 * batch, "l": length, "m": chance.randrange(1, 9) if free else 2 * length}
        args, kwargs = generator.call(parameters, sizes, odd=0.02)
        try:
            arguments = module.forward(*args, **kwargs)
        except TypeError:  # a parameter before *args was left out
            continue
        with batch_of(batch), torch.no_grad():
            recording.call(slot, *args, **kwargs)
        calls.append((batch, arguments))
    return recording, calls


@pytest.fixture
def cases(count):
    return count(120, 5000)


def check_case(chance: random.Random) -> tuple[int, int]:
    """Compare the three routers over calls of one generated forward; return calls, and how many had a graph."""
    generator = Generator(chance)
    parameters = generator.signature()
    module = module_of(parameters, generator, lambda arguments: arguments)
    recording, calls = recorded_calls(generator, parameters, module)
    graphs = [seen.graph(f"graph{i}", recording.signature) for i, seen in enumerate(recording.observations)]
    slow = SlowRouter(calls)
    assert len(graphs) == len(slow.graphs)
    if not graphs:
        return 0, 0
    routes = [Route(graph, lambda: None, None) for graph in graphs]
    quick = compile_route(module, routes, None)
    routed = 0
    for _ in range(CALLS_A_CASE):
        sizes = {name: chance.randrange(0, 7) for name in ("b", "l")}
        sizes |= {"bb": 2 * sizes["b"], "m": 2 * sizes["l"]}
        args, kwargs = generator.call(parameters, sizes, odd=chance.choice([0.0, 0.0, 0.05, 0.2]))
        try:
            arguments = module.forward(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                quick(*args, **kwargs)
            continue
        expected = slow.graph_of(arguments)
        wanted = routes[expected].run if expected is not None else None
        assert quick(*args, **kwargs) is wanted, (expected, graphs, args, kwargs)
        found = find_route(module, routes, args, kwargs)
        assert getattr(found, "run", None) is wanted, (expected, found, graphs, args, kwargs)
        routed += wanted is not None
    return CALLS_A_CASE, routed


def test_the_quick_check_and_its_twin_route_as_the_slow_router_does(cases):
    totals = []

    @settings(max_examples=cases)
    @given(st.randoms(use_true_random=True))
    def every(chance):
        totals.append(check_case(chance))

    every()
    calls, routed = (sum(column) for column in zip(*totals, strict=True))
    assert routed > calls / 10  # it is worth something only if both answers are common
    assert routed < calls * 9 / 10


# ----------------------------------------------------------------------------------- tuned equals eager


def twice(value):
    """Return a nested value with its tensors doubled: what the generated forwards compute."""
    if isinstance(value, torch.Tensor):
        return value * 2
    if dataclasses.is_dataclass(value):
        return type(value)(*(twice(getattr(value, f.name)) for f in dataclasses.fields(value)))
    if isinstance(value, (dict, UserDict)):
        return type(value)((key, twice(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [twice(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def written_out(value):
    """Return a nested value with nothing hidden in it, for a comparison of types and values."""
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.tolist()
    if dataclasses.is_dataclass(value):
        return type(value), [written_out(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, (dict, UserDict)):
        return type(value), [(type(key), key, written_out(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [written_out(item) for item in value]
    return type(value), repr(value)


def flat_engine(graph, module):
    """Serve a graph as real backends do: the call's tensors in, the output's tensors out, both put together again."""
    forward, apart = compile_forward(graph, module.forward), compile_output_accessor(graph)
    together = compile_output(graph)
    return compile_call(graph, lambda tensors: together([tensor.clone() for tensor in apart(forward(*tensors))]))


def test_what_engines_answer_is_what_eager_answers_types_included(cases, install, engine_of):
    served = []

    @settings(max_examples=cases)
    @given(st.randoms(use_true_random=True))
    def every(chance):
        generator = Generator(chance)
        parameters = generator.signature()
        module = module_of(parameters, generator, twice)
        recording, _ = recorded_calls(generator, parameters, module)
        graphs = [seen.graph(f"graph{i}", recording.signature) for i, seen in enumerate(recording.observations)]
        stable = [not seen.unstable and seen.samples for seen in recording.observations]
        graphs = [graph for graph, usable in zip(graphs, stable, strict=True) if usable]
        if not graphs:
            return
        engines = [engine_of(flat_engine(graph, module), live_weights=True) for graph in graphs]
        dispatcher = install(module, *zip(graphs, engines, strict=True))
        for _ in range(5):
            sizes = {"b": chance.randrange(1, 5), "l": chance.randrange(1, 7)}
            sizes |= {"bb": 2 * sizes["b"], "m": 2 * sizes["l"]}
            args, kwargs = generator.call(parameters, sizes, odd=chance.choice([0.0, 0.1]))
            try:
                expected = module.forward(*args, **kwargs)
            except TypeError:
                continue
            assert written_out(module(*args, **kwargs)) == written_out(expected)
        assert "engine failed" not in dispatcher.stats.fallbacks
        served.append(sum(dispatcher.stats.engine_calls.values()))

    every()
    assert sum(served) > len(served)
