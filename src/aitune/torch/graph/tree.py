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
        mark: What distinguishes nodes of one type beside their keys, in hashable form.
        context: What ``torch.utils._pytree`` needs to put the node together again.
    """

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()
    mark: Hashable = None
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
    kind = type(value)
    if _node_type(value) is not None:
        node = pytree.SUPPORTED_NODES[_node_type(value)]
        children, context = node.flatten_fn(value)
        keys = _registered_keys(value, node, len(children))
        mark = _hashable(context)
    elif dataclasses.is_dataclass(kind):
        keys = tuple(item.name for item in dataclasses.fields(value))
        children, context, mark = [getattr(value, key) for key in keys], None, None
    elif isinstance(value, Mapping):
        keys = tuple(value)
        children, context, mark = [value[key] for key in keys], None, None
    else:
        leaves.append(value)
        return LEAF
    return Structure(kind, keys, tuple(_walk(child, leaves) for child in children), mark, context)


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
    try:
        hash(context)
    except TypeError:
        return repr(context)
    return context  # type: ignore[no-any-return]


def _assemble(node: Structure, children: list[Any]) -> Any:
    kind = node.kind
    assert kind is not None
    registered: Any = kind if kind in pytree.SUPPORTED_NODES else namedtuple if hasattr(kind, "_fields") else None
    if registered is not None:
        return pytree.SUPPORTED_NODES[registered].unflatten_fn(children, node.context)
    if dataclasses.is_dataclass(kind):
        value = object.__new__(
            kind
        )  # not through __init__: fields may be init=False, and __post_init__ may have effects
        for key, child in zip(node.keys, children, strict=True):
            object.__setattr__(value, key, child)
        return value
    return kind(zip(node.keys, children, strict=True))
