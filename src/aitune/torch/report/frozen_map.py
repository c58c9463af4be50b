"""A mapping that cannot be changed, keeps its order, and can be pickled, hashed and printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["FrozenMap"]

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)


class FrozenMap(Mapping[K, V_co]):
    """A read-only copy of a mapping.

    ``types.MappingProxyType`` would do, were it possible to pickle one.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V_co]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (self._items,)

    def __repr__(self) -> str:
        return repr(self._items)
