"""The items of a dict, list, deque or set, remembered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aitune.torch.check.walk import Node, contents, dict_methods, item_path

__all__ = ["REMOVED", "ContainerState"]


class _Removed(Enum):
    removed = "removed"

    def __repr__(self) -> str:
        return "nothing"


REMOVED = _Removed.removed
"""Stands for the value of an item that is not there."""


@dataclass(frozen=True, eq=False)
class ContainerState:
    """A container and the items that it had, by identity.

    Attributes:
        node: The container with its path.
        items: Its items then, in order.
    """

    node: Node
    items: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, node: Node) -> ContainerState:
        """Remember a container as it is."""
        return cls(node, tuple(contents(node.value)))

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield path, old and present value of every item that is another object now."""
        now = contents(self.node.value)
        if self._same(now):
            return
        old, new = dict(self.items), dict(now)
        for key, value in new.items():
            before = old.get(key, REMOVED)
            if value is not before:
                yield item_path(self.node.path, key, dotted=self.node.dotted), before, value
        for key, before in old.items():
            if key not in new:
                yield item_path(self.node.path, key, dotted=self.node.dotted), before, REMOVED

    def restore(self) -> None:
        """Make the items what they were, in the same container; nothing is written where nothing differs."""
        value, now = self.node.value, contents(self.node.value)
        if self._same(now):
            return
        if isinstance(value, dict):
            self._restore_dict(value, [key for key, _ in now])
        elif isinstance(value, list):
            value[:] = [item for _, item in self.items]
        elif isinstance(value, deque):
            value.clear()
            value.extend(item for _, item in self.items)
        elif isinstance(value, set):
            members = {key for key, _ in self.items}
            value.intersection_update(members)
            value.update(members)

    def _same(self, now: list[tuple[Any, Any]]) -> bool:
        return len(now) == len(self.items) and all(
            a is c and b is d for (a, b), (c, d) in zip(now, self.items, strict=True)
        )

    def _restore_dict(self, value: dict[Any, Any], keys: list[Any]) -> None:
        plain = dict_methods(value)
        saved = dict(self.items)
        for key in keys:
            if key not in saved:
                plain.__delitem__(value, key)
        # A key that was deleted and came back stands at the end: only then is everything put back in order.
        # Otherwise no other key is touched, since somebody may be reading.
        reordered = [key for key in keys if key in saved] != list(saved)
        for key, item in self.items:
            if reordered:
                plain.pop(value, key, None)
            plain.__setitem__(value, key, item)
