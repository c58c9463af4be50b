"""Functions generated for one graph: from a call to its flat tensors and from flat tensors to an output.

Binding a signature and flattening a tree costs tens of microseconds a call. Where the structure is known
beforehand, the same is a handful of direct accesses such as ``options["mask"]``, written as source once and
compiled, as ``dataclasses`` does. The source holds names, string keys and indices only; every other object is
reached through a namespace.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.spec import CallSpec, Constant, Opaque, TensorSpec, Varying
from aitune.torch.graph.tree import LEAF, Structure, flatten

__all__ = [
    "Access",
    "Names",
    "compile_accessor",
    "compile_call",
    "compile_forward",
    "compile_output",
    "compile_output_accessor",
    "compiled",
    "leaf_expressions",
    "signature_source",
    "structure_conditions",
]


@dataclass(frozen=True)
class Access:
    """How generated source reads one leaf of a call.

    Attributes:
        leaf_index: Its place among ``graph.inputs.leaves``.
        expression: Source text, valid once the conditions of :func:`structure_conditions` were evaluated.
        spec: What the leaf is.
    """

    leaf_index: int
    expression: str
    spec: TensorSpec | Constant | Varying | Opaque


class Names:
    """Names under which generated source finds objects; none of them is a parameter of the signature.

    Args:
        taken: Names that belong to the user, such as parameters (one may be called ``type`` or ``len``).

    Attributes:
        prefix: What every name made here starts with, and no taken name does.
        namespace: Object by name, to be the globals of the generated function.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        names = tuple(taken)
        prefix = "_ait_"
        while any(name.startswith(prefix) for name in names):
            prefix += "_"
        self.prefix = prefix
        self.namespace: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    def of(self, value: Any, hint: str = "") -> str:
        """Return the name of an object, the same one for the same object.

        Args:
            value: The object; the namespace keeps it alive.
            hint: Letters that make the source readable.
        """
        if id(value) not in self._known:
            stem = hint if hint.isidentifier() else ""
            name = f"{self.prefix}{len(self.namespace)}_{stem}"
            self._known[id(value)] = name
            self.namespace[name] = value
        return self._known[id(value)]


def signature_source(signature: CallSignature, names: Names) -> str:
    """Return the text between the parentheses of a ``def`` that takes what the signature takes.

    Defaults are the signature's own objects, found in the namespace of ``names``.
    """
    parts: list[str] = []
    previous: Any = None
    for parameter in signature.parameters:
        kind = parameter.kind
        if previous is parameter.POSITIONAL_ONLY and kind is not previous:
            parts.append("/")
        if kind is parameter.KEYWORD_ONLY and previous not in (parameter.VAR_POSITIONAL, kind):
            parts.append("*")
        stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
        has_default = parameter.default is not inspect.Parameter.empty
        default = f"={names.of(parameter.default, 'default')}" if has_default else ""
        parts.append(f"{stars}{parameter.name}{default}")
        previous = kind
    if previous is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def leaf_expressions(graph: GraphSpec, names: Names) -> tuple[Access, ...]:
    """Return one access for each leaf of the graph's inputs, in order.

    Subtrees of types that cannot be addressed directly (custom pytree nodes) are read from a local variable,
    which the conditions of :func:`structure_conditions` with the same ``names`` assign.
    """
    pairs = zip(_Plan(graph.inputs.structure, None, names).leaves, graph.inputs.leaves, strict=True)
    return tuple(Access(i, text, spec) for i, (text, spec) in enumerate(pairs))


def structure_conditions(graph: GraphSpec, names: Names) -> list[str]:
    """Return expressions that are all true if and only if the containers of a bound call are the graph's.

    They are to be evaluated in order, each only if those before it were true, in the scope of a function with
    the forward's parameters. Types are exact. The order of keys counts, since a forward may iterate. What is
    in the place of a leaf is not looked at: the check of the leaf itself has to refuse a container there.
    """
    return _Plan(graph.inputs.structure, None, names).conditions


def compiled(name: str, parameters: str, body: Sequence[str], names: Names) -> Callable[..., Any]:
    """Compile a function from source.

    Args:
        name: Its name, shown in tracebacks.
        parameters: As :func:`signature_source` gives them.
        body: Its statements, one line each, without indentation.
        names: Where its free names are found.
    """
    lines = [f"def {name}({parameters}):", *(f"    {line}" for line in body)]
    scope = dict(names.namespace)
    # A file name of its own as well: torch.compile keeps notes on functions by file, line and name.
    exec(compile("\n".join(lines), f"<aitune {name} {id(names):x}>", "exec"), scope)
    function: Callable[..., Any] = scope.pop(name)  # left there, function and scope would keep each other alive
    return function


def compile_accessor(graph: GraphSpec) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Generate the quick form of ``graph.input_tensors``, called as the forward is.

    The function takes every legal form of the call (positional, keyword, defaults). It does not check that
    the call is one of the graph: that is the caller's promise; another call gets any answer or error.
    """
    return compile_call(graph, None)


def compile_call(graph: GraphSpec, function: Callable[[tuple[torch.Tensor, ...]], Any] | None) -> Callable[..., Any]:
    """Generate a function with the forward's parameters that passes the call's tensors to ``function``.

    Args:
        graph: The graph; calls are not checked against it, see :func:`compile_accessor`.
        function: Takes the tuple of tensors, behind them what varies and is no tensor; its answer is returned. None
            returns the tuple of tensors itself.
    """
    names = Names(parameter.name for parameter in graph.signature.parameters)
    parameters = signature_source(graph.signature, names)
    plan = _Plan(graph.inputs.structure, None, names)
    pairs = list(zip(plan.leaves, graph.inputs.leaves, strict=True))
    texts = [text for text, spec in pairs if isinstance(spec, TensorSpec)]
    if function is not None:
        texts += [text for text, spec in pairs if isinstance(spec, Varying)]
    flat = _tuple_source(texts)
    answer = flat if function is None else f"{names.of(function, 'function')}({flat})"
    return compiled("call", parameters, [*plan.prelude, f"return {answer}"], names)


def compile_output(graph: GraphSpec) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Generate the quick form of ``graph.output(tensors)``.

    Tuples, lists, dicts and named tuples are written as displays; other types are put together as
    :meth:`~aitune.torch.graph.tree.Structure.unflatten` does it. The number of tensors is not checked.
    """
    names = Names(("tensors",))
    tensors = (f"tensors[{i}]" for i in range(len(graph.outputs.tensors)))
    texts = iter(_leaf_texts(graph.outputs, tensors, names))
    return compiled("output", "tensors", [f"return {_display(graph.outputs.structure, texts, names)}"], names)


def compile_output_accessor(graph: GraphSpec) -> Callable[[Any], tuple[torch.Tensor, ...]]:
    """Generate the quick form of ``graph.output_tensors``, which does not check the output's structure."""
    names = Names(("value",))
    plan = _Plan(graph.outputs.structure, "value", names)
    pairs = zip(plan.leaves, graph.outputs.leaves, strict=True)
    flat = _tuple_source([text for text, spec in pairs if isinstance(spec, TensorSpec)])
    return compiled("output_tensors", "value", [*plan.prelude, f"return {flat}"], names)


def compile_forward(graph: GraphSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """Generate a function of the graph's flat tensors that calls ``function`` as the graph's call does.

    What varies and is no tensor comes behind the tensors.

    The counterpart of ``graph.call(tensors)`` in plain source, for tools that trace Python; every function
    made here has a code object of its own.

    Args:
        graph: The graph.
        function: Takes what the module's forward takes; its answer is returned.
    """
    inputs = graph.inputs
    parameters = [f"tensor{i}" for i in range(len(inputs.tensors))]
    scalars = [f"scalar{i}" for i in range(len(inputs.varying))]
    names = Names((*parameters, *scalars, "call", "function"))
    leaf_texts = _leaf_texts(inputs, iter(parameters), names, iter(scalars))
    stand_ins = [object() if isinstance(leaf, (TensorSpec, Varying)) else leaf.value for leaf in inputs.leaves]
    arguments = inputs.structure.unflatten(stand_ins)
    texts: dict[int, str] = {}
    supply = iter(leaf_texts)
    for parameter, child in zip(inputs.structure.keys, inputs.structure.children, strict=True):
        value = arguments[parameter]
        if parameter in _variadic(graph.signature):
            items = value.values() if isinstance(value, dict) else value
            texts.update({id(v): _display(c, supply, names) for c, v in zip(child.children, items, strict=True)})
        else:
            texts[id(value)] = _display(child, supply, names)
    args, kwargs = graph.signature.call(arguments, graph.form)
    given = [texts[id(value)] for value in args]
    # Through a dict: what went into **kwargs need not be an identifier.
    named = ", ".join(f"{key!r}: {texts[id(value)]}" for key, value in kwargs.items())
    given += [f"**{{{named}}}"] if kwargs else []
    # A closure: torch.compile keeps the globals of what it compiled for ever, and with them the module.
    lines = [
        f"def call({', '.join([*parameters, *scalars])}):",
        f"    return function({', '.join(given)})",
        "return call",
    ]
    made: Callable[..., Any] = compiled("make", "function", lines, names)(function)
    return made


class _Plan:
    """One walk over a structure, collecting source.

    Args:
        node: The structure.
        text: Source of the value that has it; None for a call, whose children are the parameters.
        names: Where the source finds objects.
    """

    def __init__(self, node: Structure, text: str | None, names: Names) -> None:
        self.names = names
        self.conditions: list[str] = []
        self.prelude: list[str] = []
        self.leaves: list[str] = []
        self._trees = 0
        pairs = zip(node.keys, node.children, strict=True) if text is None else [(text, node)]
        for name, child in pairs:
            self._visit(child, str(name))

    def _visit(self, node: Structure, text: str) -> None:
        if node.is_leaf:
            self.leaves.append(text)
            return
        accesses = _child_accesses(node, text, self.names)
        if accesses is None:
            self._visit_whole(node, text)
            return
        self.conditions.append(f"{self.names.of(type, 'type')}({text}) is {_type_name(node, self.names)}")
        if _is_plain_dataclass(node) and node.kind is not None and node.kind.__dictoffset__:
            # Attributes beside the fields may mean something to the forward.
            self.conditions.append(f"{self.names.of(len, 'len')}({text}.__dict__) == {len(node.keys)}")
        if _is_mapping(node):
            keys = [str.__repr__(key) for key in node.keys]
            self.conditions.append(f"[*{text}] == [{', '.join(keys)}]")
        elif node.kind in (tuple, list):
            self.conditions.append(f"{self.names.of(len, 'len')}({text}) == {len(node.keys)}")
        for child, access in zip(node.children, accesses, strict=True):
            self._visit(child, access)

    def _visit_whole(self, node: Structure, text: str) -> None:
        variable = f"{self.names.prefix}tree{self._trees}"
        self._trees += 1

        def leaves_of(value: Any) -> list[Any] | None:
            leaves, structure = flatten(value)
            return leaves if structure == node else None

        call = f"{self.names.of(leaves_of, 'leaves_of')}({text})"
        self.conditions.append(f"({variable} := {call}) is not None")
        self.prelude.append(f"{variable} = {call}")
        self.leaves.extend(f"{variable}[{i}]" for i in range(sum(1 for _ in node.paths())))


def _child_accesses(node: Structure, text: str, names: Names) -> list[str] | None:
    """Return the source of each child, None if the node's type has ways of its own."""
    if node.kind in (tuple, list) or _is_named_tuple(node):
        return [f"{text}[{i}]" for i in range(len(node.keys))]
    if _is_mapping(node):
        other_keys = any(type(key) is not str for key in node.keys)  # 1, 1.0 and True are one key
        if other_keys or (node.kind not in pytree.SUPPORTED_NODES and not _is_model_output(node)):
            return None  # the latter may have attributes beside its items
        if _is_model_output(node):  # its own __getitem__ makes a dict first
            return [f"{names.of(dict.__getitem__, 'item')}({text}, {key!r})" for key in node.keys]
        return [f"{text}[{key!r}]" for key in node.keys]
    if _is_plain_dataclass(node) and node.mark is None:
        return [f"{text}.{key}" for key in node.keys]
    return None


def _is_plain_dataclass(node: Structure) -> bool:
    return node.kind not in pytree.SUPPORTED_NODES and dataclasses.is_dataclass(node.kind)


def _is_named_tuple(node: Structure) -> bool:
    kind = node.kind
    if kind is None or kind in pytree.SUPPORTED_NODES:
        return False
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_mapping(node: Structure) -> bool:
    kind = node.kind
    if kind in (dict, OrderedDict) or _is_model_output(node):
        return True
    return kind is not None and kind not in pytree.SUPPORTED_NODES and issubclass(kind, Mapping)


def _is_model_output(node: Structure) -> bool:
    """Whether it is an output class of transformers, found without importing the library."""
    ancestors = node.kind.__mro__ if node.kind is not None else ()
    return any(c.__name__ == "ModelOutput" and c.__module__.startswith("transformers.") for c in ancestors)


def _type_name(node: Structure, names: Names) -> str:
    assert node.kind is not None
    return names.of(node.kind, node.kind.__name__)


def _tuple_source(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _variadic(signature: CallSignature) -> set[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {parameter.name for parameter in signature.parameters if parameter.kind in kinds}


def _leaf_texts(
    spec: CallSpec, tensors: Iterator[str], names: Names, scalars: Iterator[str] | None = None
) -> list[str]:
    """Return the source of each leaf: the next tensor, the next scalar that varies, or the constant of the spec."""
    texts = []
    for leaf in spec.leaves:
        if isinstance(leaf, TensorSpec):
            texts.append(next(tensors))
        elif isinstance(leaf, Varying) and scalars is not None:
            texts.append(next(scalars))
        else:
            texts.append(names.of(leaf.value, "constant"))
    return texts


def _display(node: Structure, texts: Iterator[str], names: Names) -> str:
    """Return source that makes a value of a structure, taking the source of its leaves from ``texts``."""
    if node.is_leaf:
        return next(texts)
    children = [_display(child, texts, names) for child in node.children]
    if node.kind is tuple:
        return _tuple_source(children)
    if node.kind is list:
        return f"[{', '.join(children)}]"
    if node.kind is dict and all(type(key) is str for key in node.keys):
        return f"{{{', '.join(f'{key!r}: {child}' for key, child in zip(node.keys, children, strict=True))}}}"
    if _is_named_tuple(node):
        return f"{_type_name(node, names)}({', '.join(children)})"
    shallow = Structure(node.kind, node.keys, (LEAF,) * len(children), node.mark, node.context)
    return f"{names.of(shallow.unflatten, 'unflatten')}([{', '.join(children)}])"
