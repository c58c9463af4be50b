"""The modules that were seen: trees in order of execution, which keep no module alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import torch

__all__ = ["Forest", "below"]

NodeT = TypeVar("NodeT", bound="_Node")


class _Node(Protocol):
    children: list[Any]
    parent: Any


class Forest(Generic[NodeT]):
    """Nodes by module, forgotten with the module. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[int, tuple[weakref.ref[torch.nn.Module], NodeT]] = {}
        self._heirs: dict[int, tuple[weakref.ref[torch.nn.Module], NodeT]] = {}

    def find(self, module: torch.nn.Module) -> NodeT | None:
        """Return the node of a module, None if it was not seen."""
        entry = self._nodes.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def add(self, module: torch.nn.Module, node: NodeT) -> None:
        """Remember the node of a module, below its parent."""
        with self._lock:
            self._nodes[id(module)] = self._entry(self._nodes, module, node)
            if node.parent is not None:
                node.parent.children.append(node)

    def adopt(self, node: NodeT, parent: NodeT) -> None:
        """Put a head below the module that called it."""
        with self._lock:
            above: Any = parent
            while above is not None:
                if above is node:
                    return  # it calls itself
                above = above.parent
            node.parent = parent
            parent.children.append(node)

    def expect(self, module: torch.nn.Module, node: NodeT) -> None:
        """Let every module below ``module`` that is not known yet become a child of ``node`` once it is called."""
        with self._lock:
            for part in module.modules():
                if part is not module and self.find(part) is None:
                    self._heirs[id(part)] = self._entry(self._heirs, part, node)

    def expected(self, module: torch.nn.Module) -> NodeT | None:
        """Return whose child a module will be, None if nobody waits for it."""
        entry = self._heirs.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def heads(self) -> list[NodeT]:
        """Return the nodes without a parent, in order of appearance."""
        with self._lock:
            return [node for _, node in list(self._nodes.values()) if node.parent is None]

    def all(self) -> list[NodeT]:
        """Return every node, in order of appearance."""
        with self._lock:
            return [node for _, node in list(self._nodes.values())]

    def seen(self) -> list[NodeT]:
        """Return every node, without a look at whether another thread is adding one."""
        return [node for _, node in list(self._nodes.values())]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._nodes.clear()
            self._heirs.clear()

    def forget(self) -> None:
        """In a forked process, whose other threads stayed in the parent: begin anew."""
        self._lock = threading.RLock()  # one of those threads may have held it
        self.clear()

    def _entry(
        self, table: dict[int, tuple[weakref.ref[torch.nn.Module], NodeT]], module: torch.nn.Module, node: NodeT
    ) -> tuple[weakref.ref[torch.nn.Module], NodeT]:
        key = id(module)

        def forget(reference: weakref.ref[torch.nn.Module]) -> None:
            with self._lock:
                entry = table.get(key)
                if entry is not None and entry[0] is reference:
                    del table[key]
                    if table is self._nodes and node.parent is not None and node in node.parent.children:
                        node.parent.children.remove(node)

        return weakref.ref(module, forget), node


def below(node: NodeT) -> Iterator[NodeT]:
    """Return everything below a node, in order of execution, parents first."""
    for child in list(node.children):
        yield child
        yield from below(child)
