"""A graph comes back from JSON as it was, and nothing but a graph comes out of any JSON."""

from __future__ import annotations

import collections
import enum
import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneError, DocumentError
from aitune.torch.fields import parse
from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.graph.document import NotWrittenError, class_name, graph_record, read_graph
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec, Varying, constant_or_opaque
from aitune.torch.graph.tree import flatten

CPU = torch.device("cpu")
BATCH, SIDE = BatchDim("batch0", 1, 8, 4), DynamicDim("dim0", 2, 99)


@dataclass
class Pair:
    left: Any
    right: Any = None


class Point(NamedTuple):
    x: Any
    y: Any


class Named(dict):
    pass


class Colour(enum.Enum):
    red = 1


OWN = {class_name(kind): kind for kind in (Pair, Point, Named, Colour)}


def forward(pair, options=None, *rest, flag=True, **more):
    return pair


def spec_of(value):
    leaves, structure = flatten(value)
    pairs = zip(structure.paths(), leaves, strict=True)
    specs = [
        TensorSpec(path, (BATCH, SIDE, 3), leaf.dtype, CPU) if leaf is X else constant_or_opaque(path, leaf)
        for path, leaf in pairs
    ]
    return CallSpec(structure, tuple(specs))


def graph_of(value, outputs=None):
    signature = CallSignature.of(forward)
    inputs = {"pair": value, "options": None, "rest": (), "flag": True, "more": {}}
    return GraphSpec("graph0", signature, spec_of(inputs), spec_of(outputs), False, CallForm(1, ("flag",)))


def find(name):
    return OWN[name]


def round_trip(graph):
    record = parse(json.dumps(graph_record(graph)), "file")
    return read_graph(record, graph.signature, find, {"cpu": CPU})


X = torch.zeros(2)
VALUES = [
    X,
    None,
    (X, [X, (X,)], {"a": X, "b": [None, True, 1, 1.5, "text", b"bytes", 1j]}),
    Pair(X, Point(X, 3)),
    Named(a=X, b=Named()),
    collections.OrderedDict(b=X, a=X),
    [torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, Colour.red],
    {1: X, "1": X, None: X},
    [float("nan"), float("inf"), -0.0, 10**30, -5],
    {},
    (),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_graph_comes_back_as_it_was(value):
    graph = graph_of(value, outputs=value)
    again = round_trip(graph)
    assert again.inputs.structure == graph.inputs.structure
    assert repr(again) == repr(graph)
    assert again.dims == graph.dims
    tensors = [torch.zeros(1, 2, 3)] * len(graph.inputs.tensors)
    assert repr(again.output(tensors[: len(graph.outputs.tensors)])) == repr(
        graph.output(tensors[: len(graph.outputs.tensors)])
    )


def test_dimensions_that_vary_together_still_do():
    tied = BatchDim("batch1", 2, 16).of_unit("batch", 2)
    spec = TensorSpec(("x",), (BATCH.of_unit("batch", 1), tied), torch.float32, CPU)
    graph = graph_of(X)
    graph = replace(graph, outputs=CallSpec(flatten({"x": None})[1], (spec,)))
    dims = [size for tensor in round_trip(graph).outputs.tensors for size in tensor.shape]
    assert [(dim.unit, dim.per_unit) for dim in dims] == [("batch", 1), ("batch", 2)]


def test_scalars_that_vary_come_back_with_their_type():
    graph = graph_of(0.5)
    leaves = [Varying(leaf.path, float, 0.5) if leaf.path == ("pair",) else leaf for leaf in graph.inputs.leaves]
    again = round_trip(replace(graph, inputs=CallSpec(graph.inputs.structure, tuple(leaves))))
    (varying,) = again.inputs.varying
    assert (varying.path, varying.kind, varying.value) == (("pair",), float, 0.5)


def test_tensors_move_to_where_the_module_is():
    record = parse(json.dumps(graph_record(graph_of(X))), "file")
    graph = read_graph(record, CallSignature.of(forward), find, {"cpu": torch.device("meta")})
    assert {spec.device.type for spec in graph.inputs.tensors} == {"meta"}


@pytest.mark.parametrize("value", [object(), [len], Pair], ids=["object", "function", "class"])
def test_what_a_file_cannot_hold_is_refused_when_it_is_written(value):
    with pytest.raises(NotWrittenError):
        graph_record(graph_of(value))


def test_a_class_made_in_a_function_is_refused_when_it_is_written():
    @dataclass
    class Local:
        x: Any

    with pytest.raises(NotWrittenError, match="within a function"):
        graph_record(graph_of(Local(X)))


def test_output_classes_of_transformers_come_back():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    OWN[class_name(outputs.BaseModelOutput)] = outputs.BaseModelOutput
    graph = graph_of(X, outputs.BaseModelOutput(last_hidden_state=X, hidden_states=(X, X)))
    assert round_trip(graph) == graph


def test_another_forward_is_refused():
    record = parse(json.dumps(graph_record(graph_of(X))), "file")
    with pytest.raises(DocumentError, match="parameters"):
        read_graph(record, CallSignature.of(lambda other: other), find, {})


DOCUMENT = graph_record(graph_of(Pair(X, [1, {"a": X}]), outputs=(X, Named(a=X))))
JUNK = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just([]) | st.just({}) | st.just([{}])
JUNK = JUNK | st.just({"kind": "os:system"}) | st.just({"int": "9" * 500}) | st.just({"enum": ["os:path", "x"]})


def places_in(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(item, (*path, key))


@given(st.sampled_from(sorted((place for place in places_in(DOCUMENT) if place), key=repr)), JUNK, st.booleans())
def test_a_document_changed_anywhere_gives_a_graph_or_an_error_of_ours(place, junk, remove):
    document = json.loads(json.dumps(DOCUMENT))
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = junk
    try:
        graph = read_graph(parse(json.dumps(document), "file"), CallSignature.of(forward), find, {})
    except AITuneError:
        return
    assert isinstance(graph, GraphSpec)
