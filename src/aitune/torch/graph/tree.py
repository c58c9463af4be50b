"""Nested values as leaves and structure, on top of ``torch.utils._pytree``.

Types that are registered there (tuples, lists, dicts, NamedTuples, ``ModelOutput``, ...) are taken apart by it.
Dataclasses and other mappings are taken apart here without being registered, since registration would change the
process for everybody.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

__all__ = ["LEAF", "Path", "Structure", "flatten", "path_text"]

Path = tuple[Any, ...]
"""Keys, indices and field names that lead to a leaf; the first is a parameter name where the tree is a call."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a nested value without its leaves. Hashable, comparable, picklable where its types are.

    Attributes:
        kind: The exact type of the node, None for a leaf.
        keys: Index, key or field name of each child.
        children: Structure of each child.
        mark: What distinguishes nodes of one type beside their keys, in hashable form: a detail, and the types of keys
            that are not all strings.
        context: What ``torch.utils._pytree`` needs to put the node together again.
    """

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()
    mark: tuple[Hashable, tuple[type, ...]] | None = None
    context: Any = field(default=None, compare=False, repr=False)

    @property
    def is_leaf(self) -> bool:
        """Whether this node is a leaf."""
        return self.kind is None

    def paths(self, prefix: Path = ()) -> Iterator[Path]:
        """Yield the path of every leaf, in the order of :func:`flatten`."""
        if self.is_leaf:
            yield prefix
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child.paths((*prefix, key))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Put a value of this structure together from its leaves.

        Args:
            leaves: One value a leaf, in the order of :func:`flatten`.

        Raises:
            ValueError: If the number of leaves is another.
        """
        supply = iter(leaves)
        try:
            value = self._take(supply)
        except StopIteration:
            raise ValueError(f"too few leaves: {len(leaves)}") from None
        if next(supply, _END) is not _END:
            raise ValueError(f"too many leaves: {len(leaves)}")
        return value

    def _take(self, supply: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(supply)
        children = []
        for child in self.children:  # a plain loop: StopIteration would become RuntimeError in a generator
            children.append(child._take(supply))  # noqa: PERF401
        return _assemble(self, children)


LEAF = Structure()
_END = object()
_COMPARABLE = (bool, int, float, str, bytes, type(None))


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """Take a nested value apart.

    Args:
        value: Any value; what is no container is a leaf, None included.

    Returns:
        The leaves in depth-first order, and the structure that puts them together again.
    """
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def path_text(path: Path) -> str:
    """Return a path as a reader writes it: ``options['mask'][0]``."""
    if not path:
        return "value"
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _walk(value: Any, leaves: list[Any]) -> Structure:
    try:
        node = _taken_apart(value)
    except RecursionError:  # it holds itself
        raise
    except Exception:  # noqa: BLE001 - a user's container may refuse to be looked into; it is a leaf then
        node = None
    if node is None:
        leaves.append(value)
        return LEAF
    children = tuple(_walk(child, leaves) for child in node.children)
    return Structure(type(value), node.keys, children, node.mark, node.context)


@dataclass(frozen=True)
class _Node:
    """One level of a value that was taken apart; fields as in :class:`Structure`, children as they are."""

    keys: tuple[Any, ...]
    children: Sequence[Any]
    mark: tuple[Hashable, tuple[type, ...]] | None = None
    context: Any = None


def _taken_apart(value: Any) -> _Node | None:
    """Return the parts of a container, None for a leaf."""
    kind = type(value)
    registered = _node_type(value)
    if kind is torch.Size:
        return None  # it is registered, and would come back as a tuple
    if registered is not None:
        node = pytree.SUPPORTED_NODES[registered]
        children, context = node.flatten_fn(value)
        children = list(children)
        keys = _registered_keys(value, node, len(children))
        return _Node(keys, children, _mark(keys, _hashable(context)), context)
    if dataclasses.is_dataclass(kind):
        keys = tuple(item.name for item in dataclasses.fields(value))
        state = _hidden_state(value, keys)
        return None if state is None else _Node(keys, [getattr(value, key) for key in keys], _mark(keys, state or None))
    if isinstance(value, Mapping):
        keys = tuple(value)
        state = _hidden_state(value, ())
        return None if state is None else _Node(keys, [value[key] for key in keys], _mark(keys, state or None))
    return None


def _hidden_state(value: Any, shown: Sequence[str]) -> tuple[tuple[str, type, Any], ...] | None:
    """Return attributes beside fields and items, which a forward may read as well; None if they cannot be compared.

    A mapping that is no dict keeps its items in attributes: of those only tensors are held against it. One that is None
    there says no more than an object does, which a copy made of the items (such as a tokenizer's encoding) lacks.
    """
    own_items = isinstance(value, Mapping) and not isinstance(value, dict)
    state = []
    for name, attribute in getattr(value, "__dict__", {}).items():
        if name in shown or (own_items and attribute is None):
            continue
        if type(attribute) in _COMPARABLE:
            state.append((name, type(attribute), attribute))
        elif not own_items or isinstance(attribute, torch.Tensor):
            return None
    return tuple(state)


def _mark(keys: tuple[Any, ...], detail: Hashable) -> tuple[Hashable, tuple[type, ...]] | None:
    """Add to a node's detail what tells keys apart that are equal: 1, 1.0 and True are three."""
    kinds = tuple(type(key) for key in keys)
    kinds = () if all(kind is str for kind in kinds) else kinds
    return (detail, kinds) if detail is not None or kinds else None


def _node_type(value: Any) -> Any:
    kind = type(value)
    if kind in pytree.SUPPORTED_NODES:
        return kind
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return namedtuple
    return None


def _registered_keys(value: Any, node: Any, count: int) -> tuple[Any, ...]:
    if isinstance(value, Mapping) and len(value) == count:
        return tuple(value)
    if isinstance(value, tuple) and hasattr(value, "_fields") and len(value._fields) == count:
        return tuple(value._fields)
    if node.flatten_with_keys_fn is not None and not isinstance(value, (tuple, list)):
        keyed, _ = node.flatten_with_keys_fn(value)
        return tuple(
            getattr(key, "key", getattr(key, "name", getattr(key, "idx", i))) for i, (key, _) in enumerate(keyed)
        )
    return tuple(range(count))


def _hashable(context: Any) -> Hashable:
    if isinstance(context, (list, tuple)):
        return type(context), tuple(_hashable(item) for item in context)
    try:
        hash(context)
    except TypeError:
        return repr(context)
    return context  # type: ignore[no-any-return]


def _assemble(node: Structure, children: list[Any]) -> Any:
    kind: Any = node.kind
    registered: Any = kind if kind in pytree.SUPPORTED_NODES else namedtuple if hasattr(kind, "_fields") else None
    if registered is not None:
        return pytree.SUPPORTED_NODES[registered].unflatten_fn(children, node.context)
    value: Any
    if dataclasses.is_dataclass(kind):
        # Not through __init__: fields may be init=False, and __post_init__ may have effects.
        value = object.__new__(node.kind or object)
        for key, child in zip(node.keys, children, strict=True):
            object.__setattr__(value, key, child)
    elif issubclass(kind, dict):
        value = kind.__new__(kind)  # its __init__ may take anything
        for key, child in zip(node.keys, children, strict=True):
            dict.__setitem__(value, key, child)
    else:
        value = kind(zip(node.keys, children, strict=True))
    state: Any = node.mark[0] if node.mark is not None else None
    for name, _, attribute in state or ():
        object.__setattr__(value, name, attribute)
    return value
