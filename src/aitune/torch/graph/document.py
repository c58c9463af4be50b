"""A graph as JSON, and back: for files that another process, or another user, reads.

Classes of containers are written by name and never imported on reading: whoever reads says which classes a name may
stand for. Defaults of parameters are not written at all; they are those of the module at hand.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree

from aitune.exceptions import AITuneUserInputError, DocumentError
from aitune.torch.fields import Fields
from aitune.torch.graph.dims import BatchDim, DynamicDim, Size
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import CallSpec, Constant, Leaf, Opaque, TensorSpec, Varying
from aitune.torch.graph.tree import LEAF, Path, Structure, flatten

__all__ = ["Classes", "NotWrittenError", "class_name", "graph_record", "read_graph"]

Classes = Callable[[str], type]
"""Returns the class of a name as :func:`class_name` writes it; raises LookupError for one that it does not allow."""

_BUILT_IN: dict[str, type] = {
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
}
_DEPTH = 60
_MOST_LEAVES = 10_000
_MOST_AXES = 64
_LARGEST_SIZE = 2**40
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NAMED: dict[str, dict[str, Any]] = {
    "dtype": _DTYPES,
    "layout": {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)},
    "memory_format": {str(value): value for value in vars(torch).values() if isinstance(value, torch.memory_format)},
}


_SIMPLE: dict[type, Callable[[Any], dict[str, Any]]] = {
    type(None): lambda value: {"none": value},
    bool: lambda value: {"bool": value},
    int: lambda value: {"int": str(value)},
    str: lambda value: {"str": value},
    float: lambda value: {"float": value.hex()},
    complex: lambda value: {"complex": [value.real.hex(), value.imag.hex()]},
    bytes: lambda value: {"bytes": value.hex()},
    torch.device: lambda value: {"device": str(value)},
}


class NotWrittenError(ValueError):
    """A graph holds something that a file cannot hold; the message says what."""


def class_name(kind: type) -> str:
    """Return the name under which a class is written."""
    return f"{kind.__module__}:{kind.__qualname__}"


# ------------------------------------------------------------------------------------------------- writing


def graph_record(graph: GraphSpec) -> dict[str, Any]:
    """Return a graph as a JSON object.

    Raises:
        NotWrittenError: If it holds a value or a container that a file cannot hold.
    """
    dims = {size.name: size for spec in (graph.inputs, graph.outputs) for size in _dims_of(spec)}
    return {
        "name": graph.name,
        "training": graph.training,
        "parameters": [[parameter.name, int(parameter.kind)] for parameter in graph.signature.parameters],
        "form": None
        if graph.form is None
        else {"positional": graph.form.positional, "keywords": list(graph.form.keywords)},
        "dims": [_dim_record(dim) for dim in dims.values()],
        "inputs": _spec_record(graph.inputs),
        "outputs": _spec_record(graph.outputs),
    }


def _dim_record(dim: DynamicDim) -> dict[str, Any]:
    sizes = {"name": dim.name, "min": dim.min, "max": dim.max, "opt": dim.opt}
    return {**sizes, "batch": isinstance(dim, BatchDim), "unit": dim.unit, "per_unit": dim.per_unit}


def _dims_of(spec: CallSpec) -> list[DynamicDim]:
    return [size for tensor in spec.tensors for size in tensor.shape if isinstance(size, DynamicDim)]


def _spec_record(spec: CallSpec) -> dict[str, Any]:
    return {"structure": _structure_record(spec.structure), "leaves": [_leaf_record(leaf) for leaf in spec.leaves]}


def _structure_record(node: Structure) -> dict[str, Any]:
    if node.kind is None:
        return {}
    if "<locals>" in node.kind.__qualname__:
        raise NotWrittenError(
            f"the class {node.kind.__qualname__} is made within a function, where no name leads to it"
        )
    name = next((name for name, kind in _BUILT_IN.items() if kind is node.kind), class_name(node.kind))
    record: dict[str, Any] = {
        "kind": name,
        "keys": [_value_record(key, "a key") for key in node.keys],
        "children": [_structure_record(child) for child in node.children],
    }
    if _rebuilt(node.kind, node.keys, node.children) != node:
        raise NotWrittenError(f"a container of class {node.kind.__qualname__} has state of its own beside its items")
    return record


def _leaf_record(leaf: Leaf) -> dict[str, Any]:
    if isinstance(leaf, Opaque):
        raise NotWrittenError(f"{leaf} cannot be compared between calls")
    if isinstance(leaf, Constant):
        return {"constant": _value_record(leaf.value, str(leaf))}
    if isinstance(leaf, Varying):
        if type(leaf.value) is not leaf.kind:
            raise NotWrittenError(f"{leaf} has no value of that type")
        return {"varying": _value_record(leaf.value, str(leaf))}
    shape = [size.name if isinstance(size, DynamicDim) else size for size in leaf.shape]
    return {"shape": shape, "dtype": str(leaf.dtype).removeprefix("torch."), "device": str(leaf.device)}


def _value_record(value: Any, where: str) -> Any:
    """Return a value that is no tensor as JSON: an object of one entry, whose name says the kind."""
    simple = next((record for kind, record in _SIMPLE.items() if type(value) is kind), None)
    if simple is not None:
        return simple(value)
    if isinstance(value, enum.Enum) and "<locals>" not in type(value).__qualname__:
        return {"enum": [class_name(type(value)), value.name]}
    for kind, members in _NAMED.items():
        for name, member in members.items():
            if member is value:
                return {kind: name}
    raise NotWrittenError(f"{where} has a value of {type(value).__qualname__}, which a file cannot hold")


# ------------------------------------------------------------------------------------------------- reading


def read_graph(
    record: Fields, signature: CallSignature, classes: Classes, devices: Mapping[str, torch.device]
) -> GraphSpec:
    """Read a graph.

    Args:
        record: What :func:`graph_record` returned.
        signature: The forward of the module at hand.
        classes: Which classes names may stand for.
        devices: Where tensors of a recorded device are now; others stay as recorded.

    Raises:
        DocumentError: If it does not say what a graph is, names a class that is not allowed, or a parameter that the
            forward does not have.
    """
    parameters = [[parameter.name, int(parameter.kind)] for parameter in signature.parameters]
    if record.list("parameters") != parameters:
        raise record.error("parameters", "are not those of the module's forward")
    dims = _read_dims(record)
    reader = _Reader(dims, classes, devices)
    inputs = reader.spec(record.object("inputs"))
    if inputs.structure.kind is not dict or inputs.structure.keys != tuple(name for name, _ in parameters):
        raise record.error("inputs", "are not one value for each parameter")
    return GraphSpec(
        name=record.text("name", longest=200),
        signature=signature,
        inputs=inputs,
        outputs=reader.spec(record.object("outputs")),
        training=record.boolean("training"),
        form=record.optional("form", lambda name: _read_form(record.object(name), signature)),
    )


def _read_dims(record: Fields) -> dict[str, DynamicDim]:
    dims = {}
    for item in record.objects("dims", 1000):
        kind = BatchDim if item.boolean("batch") else DynamicDim
        least, most = item.integer("min", 1, _LARGEST_SIZE), item.integer("max", 1, _LARGEST_SIZE)
        try:
            dim = kind(item.text("name"), least, most, item.optional("opt", item.integer))
        except AITuneUserInputError as error:
            raise item.error("name", f"is no dimension: {error}") from error
        unit, per_unit = item.text("unit"), item.integer("per_unit", 1, _LARGEST_SIZE)
        dims[dim.name] = dim.of_unit(unit, per_unit)
    return dims


def _read_form(record: Fields, signature: CallSignature) -> CallForm:
    form = CallForm(record.integer("positional", 0, 10_000), record.texts("keywords"))
    named = [p.name for p in signature.parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    if signature.var_keyword is None and not set(form.keywords) <= {*named}:
        raise record.error("keywords", "are not parameters of the module's forward")
    return form


class _Reader:
    """Reads specs.

    Args:
        dims: Dimensions by name.
        classes: Which classes names may stand for.
        devices: Where tensors of a recorded device are now.
    """

    def __init__(self, dims: Mapping[str, DynamicDim], classes: Classes, devices: Mapping[str, torch.device]) -> None:
        self._dims = dims
        self._classes = classes
        self._devices = devices

    def spec(self, record: Fields) -> CallSpec:
        structure = self._structure(record.object("structure"), 0)
        paths = list(structure.paths())
        leaves = record.objects("leaves", _MOST_LEAVES)
        if len(paths) != len(leaves):
            raise record.error("leaves", f"are {len(leaves)}, the structure has {len(paths)}")
        return CallSpec(structure, tuple(self._leaf(item, path) for item, path in zip(leaves, paths, strict=True)))

    def _structure(self, record: Fields, depth: int) -> Structure:
        if "kind" not in record:
            return LEAF
        if depth > _DEPTH:
            raise record.error("children", "are nested too deeply")
        name = record.text("kind")
        kind = _BUILT_IN.get(name) or self._class(record, "kind", name)
        keys = tuple(self._value(record, "keys", item) for item in record.list("keys", _MOST_LEAVES))
        children = tuple(self._structure(child, depth + 1) for child in record.objects("children", _MOST_LEAVES))
        if len(keys) != len(children):
            raise record.error("keys", f"are {len(keys)} for {len(children)} children")
        node = _rebuilt(kind, keys, children)
        if node is None:
            raise record.error("kind", f"{name} is no container of these keys")
        return node

    def _leaf(self, record: Fields, path: Path) -> Leaf:
        if "constant" in record:
            return Constant(path, self._value(record, "constant", record.raw("constant")))
        if "varying" in record:
            value = self._value(record, "varying", record.raw("varying"))
            return Varying(path, type(value), value)
        shape = tuple(self._size(record, item) for item in record.list("shape", _MOST_AXES))
        dtype = _DTYPES[record.word("dtype", _DTYPES)]
        return TensorSpec(path, shape, dtype, self._device(record, "device", record.text("device", longest=40)))

    def _size(self, record: Fields, item: Any) -> Size:
        if isinstance(item, str) and item in self._dims:
            return self._dims[item]
        if type(item) is int and 0 <= item <= _LARGEST_SIZE:
            return item
        raise record.error("shape", "must be sizes and names of dimensions")

    def _device(self, record: Fields, name: str, text: str) -> torch.device:
        if text in self._devices:
            return self._devices[text]
        try:
            return torch.device(text)
        except RuntimeError as error:
            raise record.error(name, "is no device of torch") from error

    def _class(self, record: Fields, field: str, name: str) -> type:
        try:
            return self._classes(name)
        except LookupError as error:
            raise record.error(field, str(error.args[0] if error.args else name)) from error

    def _value(self, record: Fields, field: str, item: Any) -> Any:
        try:
            [(kind, value)] = item.items()
            if kind in _NAMED:
                return _NAMED[kind][value]
            if kind == "device":
                return self._device(record, field, _of(str, value))
            if kind == "enum":
                return self._member(record, field, *_of(list, value))
            return _SIMPLE_READ[kind](value)
        except DocumentError:
            raise
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise record.error(field, "holds no value that can be read") from error

    def _member(self, record: Fields, field: str, name: Any, member: Any) -> Any:
        kind = self._class(record, field, _of(str, name))
        if not issubclass(kind, enum.Enum):
            raise record.error(field, f"{name} is no enumeration")
        return kind.__members__[member]


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


_SIMPLE_READ: dict[str, Callable[[Any], Any]] = {
    "none": functools.partial(_of, type(None)),
    "bool": functools.partial(_of, bool),
    "int": lambda value: int(_of(str, value)[:400]),
    "str": functools.partial(_of, str),
    "float": float.fromhex,
    "complex": lambda value: complex(*map(float.fromhex, _of(list, value))),
    "bytes": bytes.fromhex,
}


def _rebuilt(kind: type, keys: tuple[Any, ...], children: tuple[Structure, ...]) -> Structure | None:
    """Return the structure of a container of a class with given keys, None where a class has another idea of itself.

    A container is made of placeholders and taken apart again, which gives marks and contexts as the class makes them.
    """
    try:
        made = _container(kind, keys)
        leaves, whole = flatten(made)
    except Exception:  # noqa: BLE001 - classes of users and libraries, given keys from a file
        return None
    if whole.kind is not kind or whole.keys != keys or not all(leaf is _PLACE for leaf in leaves):
        return None
    if any(not child.is_leaf for child in whole.children):
        return None
    return dataclasses.replace(whole, children=children)


class _Place:
    """Stands where a child will be."""


_PLACE = _Place()


def _container(kind: type, keys: tuple[Any, ...]) -> Any:
    places = [_PLACE] * len(keys)
    if kind in (tuple, list):
        return kind(places)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple.__new__(kind, places)
    if dataclasses.is_dataclass(kind) and not issubclass(kind, Mapping):
        value = object.__new__(kind)
        for key in keys:
            object.__setattr__(value, key, _PLACE)
        return value
    if kind in pytree.SUPPORTED_NODES and _is_output_class(kind):
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(places, list(keys))
    if issubclass(kind, dict):
        return kind(zip(keys, places, strict=True))
    raise TypeError(kind)


def _is_output_class(kind: type) -> bool:
    """Whether it is an output class of transformers or diffusers, found without importing either."""
    return any(
        f"{c.__module__.partition('.')[0]}.{c.__name__}" in ("transformers.ModelOutput", "diffusers.BaseOutput")
        for c in kind.__mro__
    )
