"""Every legal form of one call is one call: over random signatures, each called in every way that Python allows."""

from __future__ import annotations

import inspect
import itertools
import random
from typing import Any

import pytest
import torch

from aitune.torch.graph.accessor import compile_accessor, compile_forward
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.recording import Recording
from aitune.torch.module.route import Route, compile_route
from aitune.torch.module.slot import Slot

MOST_FORMS = 40


def random_module(chance: random.Random) -> torch.nn.Module:
    """Make a module with parameters of every kind, which returns what it was given."""
    names, parts = iter("abcdefghijk"), []
    scope: dict[str, Any] = {"torch": torch, "tensor": torch.ones(2)}
    defaults = ["1.0", "None", "'mean'", "True", "tensor", "(1, 2)"]

    def plain(count, with_defaults):
        for _ in range(count):
            with_defaults = with_defaults or chance.random() < 0.4
            parts.append(next(names) + (f"={chance.choice(defaults)}" if with_defaults else ""))
        return with_defaults

    positional = chance.randrange(0, 3)
    with_defaults = plain(positional, False)
    if positional:
        parts.append("/")
    plain(chance.randrange(0, 4), with_defaults)
    star = chance.choice(["", "*", "*rest"])
    keyword_only = chance.randrange(1, 3) if star == "*" else chance.randrange(0, 3) if star else 0
    if star:
        parts.append(star)
    for _ in range(keyword_only):
        plain(1, chance.random() < 0.5)
    if chance.random() < 0.4:
        parts.append("**extra")
    source = f"def forward(self, {', '.join(parts)}):\n    return dict(locals(), self=None)"
    exec(source, scope)
    return type("Generated", (torch.nn.Module,), {"forward": scope["forward"]})().eval()


def a_call(chance, signature):
    """Choose arguments: what is passed by name, and what goes into ``*args`` and ``**kwargs``."""
    values, rest, extra = {}, (), {}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = tuple(torch.ones(3) for _ in range(chance.randrange(0, 3)))
        elif parameter.kind is parameter.VAR_KEYWORD:
            extra = {name: torch.ones(1) for name in ("zz", "yy")[: chance.randrange(0, 3)]}
        elif parameter.default is parameter.empty or chance.random() < 0.4:
            values[parameter.name] = chance.choice([torch.ones(2, 2), 2.5, "word", [torch.ones(1), None]])
        else:
            values[parameter.name] = parameter.default
    return values, rest, extra


def forms(signature, values, rest, extra):
    """Yield positional and keyword arguments of every legal way to write the call."""
    parameters = list(signature.parameters.values())
    either = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    for positional in range(len(either) + 1):
        if rest and positional < len(either):
            continue  # everything before *args has to be positional then
        later = [*either[positional:], *keyword_only]
        if any(p.kind is p.POSITIONAL_ONLY and values[p.name] is not p.default for p in later):
            continue
        may_go = [p.name for p in later if values[p.name] is p.default and p.kind is not p.POSITIONAL_ONLY]
        must_go = {p.name for p in later if p.kind is p.POSITIONAL_ONLY}
        for count in range(len(may_go) + 1):
            for left_out in itertools.combinations(may_go, count):
                gone = {*left_out, *must_go}
                kwargs = {p.name: values[p.name] for p in later if p.name not in gone}
                args = (*(values[p.name] for p in either[:positional]), *rest)
                yield args, {**kwargs, **extra}
                yield args, {**dict(reversed(kwargs.items())), **extra}


@pytest.mark.parametrize("seed", range(200))
def test_every_legal_form_of_a_call_is_one_graph(seed):
    chance = random.Random(seed)
    module = random_module(chance)
    signature = inspect.signature(module.forward)
    values, rest, extra = a_call(chance, signature)
    recording = Recording(CallSignature.of(module.forward))
    slot = Slot(module, None)
    calls = list(forms(signature, values, rest, extra))
    calls = [calls[0], *chance.sample(calls[1:], min(len(calls) - 1, MOST_FORMS))]
    for args, kwargs in calls:
        recording.call(slot, *args, **kwargs)
    assert recording.calls == len(calls)
    (seen,) = recording.observations
    graph = seen.graph("graph0", recording.signature)
    quick = compile_route(module, [Route(graph, "engine", None)], None)
    accessor = compile_accessor(graph)
    again = compile_forward(graph, module.forward)
    for args, kwargs in calls:
        assert quick(*args, **kwargs) == ("engine" if not graph.inputs.opaque else None)
        tensors = accessor(*args, **kwargs)
        expected = module.forward(*args, **kwargs)
        assert [id(t) for t in tensors] == [id(t) for t in graph.input_tensors(args, kwargs)]
        assert same(again(*tensors), expected)


def same(one, two):
    if isinstance(one, torch.Tensor):
        return one is two
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def test_another_value_in_place_of_a_default_is_another_graph():
    class Scaled(torch.nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    module = Scaled()
    recording, slot = Recording(CallSignature.of(module.forward)), Slot(module, None)
    for args in ((torch.ones(1),), (torch.ones(1), 1.0), (torch.ones(1), 1), (torch.ones(1), 2.0)):
        recording.call(slot, *args)
    assert len(recording.observations) == 3
