"""Which handle belongs to which module: a weak registry, so that neither keeps the other's memory."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Generic, Protocol, TypeVar

import torch

from aitune.torch.module.fork import tell_after_fork

__all__ = ["Registry"]


class _Named(Protocol):
    name: str


HandleT = TypeVar("HandleT", bound=_Named)


class Registry(Generic[HandleT]):
    """Handles by module, forgotten with the module. Safe for threads.

    Attributes:
        alone: Held by whoever records the calls of all modules, since two recordings would see each other's calls.
    """

    def __init__(self) -> None:
        self.alone = threading.RLock()
        self._lock = threading.RLock()
        self._handles: dict[int, tuple[weakref.ref[torch.nn.Module], HandleT]] = {}

    def register(self, module: torch.nn.Module, handle: HandleT) -> None:
        """Remember the handle of a module, in place of an earlier one, until the module is gone."""
        key = id(module)

        def forget(reference: weakref.ref[torch.nn.Module]) -> None:
            with self._lock:
                entry = self._handles.get(key)
                if entry is not None and entry[0] is reference:
                    del self._handles[key]

        with self._lock:
            self._handles[key] = weakref.ref(module, forget), handle
        tell_after_fork(self)

    def forked(self) -> None:
        """In a forked child: take new locks, since threads that are not there may hold the old ones."""
        self.alone = threading.RLock()
        self._lock = threading.RLock()

    def find(self, module: torch.nn.Module) -> HandleT | None:
        """Return the handle of a module, None if it has none."""
        with self._lock:
            entry = self._handles.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def handles(self) -> tuple[HandleT, ...]:
        """Return the handles of all living modules, in the order in which they were wrapped."""
        with self._lock:
            return tuple(handle for reference, handle in self._handles.values() if reference() is not None)

    def unique_name(self, wanted: str, module: torch.nn.Module) -> str:
        """Return a name that no other living module has: the wanted one, or with a number behind it."""
        taken = self._names_but_of(module)
        if wanted in taken:
            gc.collect()  # a module that was let go, but is part of a cycle, must not hold a name
            taken = self._names_but_of(module)
        name, number = wanted, 1
        while name in taken:
            name = f"{wanted}-{number}"
            number += 1
        return name

    def _names_but_of(self, module: torch.nn.Module) -> set[str]:
        with self._lock:
            living = [(reference(), handle.name) for reference, handle in self._handles.values()]
        return {name for other, name in living if other is not None and other is not module}
