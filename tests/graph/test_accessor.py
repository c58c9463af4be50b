"""Generated accessors agree with binding and flattening, whatever the signature and the nesting."""

import inspect
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from hypothesis import strategies as st

from aitune.torch.graph.accessor import (
    Names,
    compile_accessor,
    compile_call,
    compile_forward,
    compile_output,
    compile_output_accessor,
    compiled,
    leaf_expressions,
    signature_source,
    structure_conditions,
)
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec, constant_or_opaque, is_tensor
from aitune.torch.graph.tree import flatten

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Batch:
    x: Any
    extra: Any = None


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.fixture(autouse=True, scope="module")
def _box_is_a_pytree_node():
    pytree.register_pytree_node(
        Box,
        lambda box: ([box.content], None),
        lambda children, _: Box(*children),
        serialized_type_name="tests.Box",
    )
    yield
    pytree._deregister_pytree_node(Box)


def call_spec(value: Any) -> CallSpec:
    leaves, structure = flatten(value)
    specs = []
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if is_tensor(leaf):
            specs.append(TensorSpec(path, tuple(leaf.shape), leaf.dtype, leaf.device))
        else:
            specs.append(constant_or_opaque(path, leaf))
    return CallSpec(structure, tuple(specs))


def graph_of(forward: Any, args: tuple = (), kwargs: dict | None = None, outputs: Any = None) -> GraphSpec:
    signature = CallSignature.of(forward)
    inputs, form = call_spec(signature.bind(args, kwargs or {})), CallForm(len(args), tuple(kwargs or {}))
    return GraphSpec("graph0", signature, inputs, call_spec(outputs), form=form)


def checker(graph: GraphSpec):
    """What a dispatcher makes of the parts: the leaves of a call, or None if it is structured differently."""
    names = Names(parameter.name for parameter in graph.signature.parameters)
    parameters = signature_source(graph.signature, names)
    conditions = structure_conditions(graph, names)
    accesses = leaf_expressions(graph, names)
    body = [f"if not ({condition}): return None" for condition in conditions]
    body.append(f"return [{', '.join(access.expression for access in accesses)}]")
    return compiled("check", parameters, body, names)


def same(first: list, second: list) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["a", 'quo"te', "type"]))
leaves = st.one_of(st.builds(lambda: torch.zeros(2)), scalars)
keys = st.sampled_from(["a", "b", "mask", "with space", "quo'te", "back\\slash", "{brace}", "\n", "é"])


def containers(inner):
    maps = st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        maps,
        maps.map(OrderedDict),
        maps.map(UserDict),
        maps.map(lambda m: defaultdict(list, m)),
        st.dictionaries(st.integers(0, 3), inner, max_size=2),
        st.lists(inner, max_size=2).map(deque),
        st.builds(Pair, inner, inner),
        st.builds(Batch, inner, inner),
        st.builds(Box, inner),
    )


values = st.recursive(leaves, containers, max_leaves=8)


def fwd_plain(x, options=None, *, flag=True):
    pass


def fwd_stars(x, /, *rest, **more):
    pass


def fwd_clashing(type, len, dict=(1, 2), *, _ait_0_type=None, return_dict=None, **_ait_tree0):  # noqa: A002
    pass


def fwd_positional_only(x, y=None, /):
    pass


def fwd_anything(*args, **kwargs):
    pass


FORWARDS = [fwd_plain, fwd_stars, fwd_clashing, fwd_positional_only, fwd_anything]


@st.composite
def calls(draw):
    forward = draw(st.sampled_from(FORWARDS))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    keyword_only = False
    for parameter in inspect.signature(forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [] if keyword_only else draw(st.lists(values, max_size=2))
            keyword_only = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(draw(st.dictionaries(st.sampled_from(["k1", "k2", "zz"]), values, max_size=2)))
        elif parameter.default is not parameter.empty and draw(st.booleans()):
            keyword_only = keyword_only or parameter.kind is not parameter.POSITIONAL_ONLY
            if parameter.kind is parameter.POSITIONAL_ONLY:
                break
        elif parameter.kind is parameter.KEYWORD_ONLY or keyword_only:
            kwargs[parameter.name] = draw(values)
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and draw(st.booleans()):
            kwargs[parameter.name], keyword_only = draw(values), True
        else:
            args.append(draw(values))
    return forward, tuple(args), kwargs


@settings(max_examples=300, deadline=None)
@given(calls())
def test_the_accessor_returns_the_tensors_that_binding_and_flattening_return(call):
    forward, args, kwargs = call
    graph = graph_of(forward, args, kwargs)

    assert same(list(compile_accessor(graph)(*args, **kwargs)), list(graph.input_tensors(args, kwargs)))
    assert same(checker(graph)(*args, **kwargs), graph.input_leaves(args, kwargs))


@settings(max_examples=200, deadline=None)
@given(calls())
def test_the_forward_of_flat_tensors_gets_the_call_that_the_spec_puts_together(call):
    forward, args, kwargs = call
    graph = graph_of(forward, args, kwargs)
    tensors = [torch.ones(1) for _ in graph.inputs.tensors]

    got = compile_forward(graph, lambda *args, **kwargs: (args, kwargs))(*tensors)

    (leaves, structure), (wanted, same_structure) = flatten(got), flatten(graph.call(tensors))
    assert structure == same_structure
    assert same(leaves, wanted)


def test_each_forward_of_flat_tensors_has_a_code_object_of_its_own():
    graph = graph_of(fwd_plain, (torch.zeros(1),))
    first, second = compile_forward(graph, fwd_plain), compile_forward(graph, fwd_plain)

    assert first.__code__ is not second.__code__


@settings(max_examples=300, deadline=None)
@given(values, values)
def test_the_conditions_hold_exactly_for_calls_of_the_same_structure(first, second):
    graph = graph_of(fwd_plain, (first,))
    expected = graph.input_leaves((second,), {})
    seen = checker(graph)(second)
    if seen is not None and not all(flatten(leaf)[1].is_leaf for leaf in seen):
        seen = None  # the checks of single leaves refuse a container

    assert (seen is None) == (expected is None)
    assert seen is None or same(seen, expected)


@settings(max_examples=200, deadline=None)
@given(values)
def test_the_output_is_the_one_that_the_spec_puts_together(value):
    graph = graph_of(fwd_plain, (None,), outputs=value)
    tensors = [torch.ones(1) * i for i, leaf in enumerate(flatten(value)[0]) if is_tensor(leaf)]

    quick, plain = compile_output(graph)(tensors), graph.output(tensors)
    taken = compile_output_accessor(graph)(value)

    assert flatten(quick)[1] == flatten(plain)[1] == graph.outputs.structure
    assert same(flatten(quick)[0], flatten(plain)[0])
    assert same(list(taken), list(graph.output_tensors(value)))


def test_order_of_keys_tells_calls_apart():
    a, b = torch.zeros(1), torch.zeros(1)
    check = checker(graph_of(fwd_plain, ({"a": a, "b": b},)))

    assert check({"a": a, "b": b}) is not None
    assert check({"b": b, "a": a}) is None


def test_a_call_that_does_not_fit_the_signature_is_a_type_error():
    accessor = compile_accessor(graph_of(fwd_plain, (torch.zeros(1),)))

    with pytest.raises(TypeError):
        accessor()
    with pytest.raises(TypeError):
        accessor(1, nonsense=2)


def test_defaults_are_the_objects_of_the_signature():
    marker = torch.zeros(1)

    def forward(x, y=marker, *, z=float("nan")):
        pass

    x = torch.ones(1)
    assert same(list(compile_accessor(graph_of(forward, (x,)))(x)), [x, marker])


def test_a_registered_type_is_taken_apart_by_its_own_rules():
    x, y = torch.zeros(1), torch.ones(1)
    graph = graph_of(fwd_plain, (Box({"a": x}),), {"options": Box(y)})

    assert same(list(compile_accessor(graph)(Box({"a": y}), Box(x))), [y, x])
    assert checker(graph)(Box([x]), Box(y)) is None
    with pytest.raises(TypeError):
        compile_accessor(graph)(Box([x]), Box(y))


def test_a_model_output_is_read_and_made():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    x, y = torch.zeros(1), torch.ones(1)
    value = outputs.BaseModelOutput(last_hidden_state=x, hidden_states=(x, y))
    graph = graph_of(fwd_plain, (value,), outputs=value)
    again = compile_output(graph)([y, y, x])

    assert same(list(compile_accessor(graph)(value)), [x, x, y])
    assert type(again) is outputs.BaseModelOutput
    assert again.last_hidden_state is y
    assert same(list(again.hidden_states), [y, x])
    assert checker(graph)(outputs.BaseModelOutput(last_hidden_state=x)) is None


def test_compile_call_passes_the_tensors_on():
    graph = graph_of(fwd_plain, (torch.zeros(1), {"mask": torch.zeros(2)}))
    run = compile_call(graph, lambda tensors: sum(tensor.numel() for tensor in tensors))

    assert run(options={"mask": torch.zeros(2)}, x=torch.zeros(1)) == 3


def test_constants_of_the_output_are_those_of_the_original():
    value = {"y": torch.zeros(1), "kind": "text", "none": None, "n": (1, True)}
    graph = graph_of(fwd_plain, (None,), outputs=value)
    y = torch.ones(1)

    assert compile_output(graph)((y,)) == {**value, "y": y}
