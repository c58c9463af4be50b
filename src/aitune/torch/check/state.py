"""Everything that a module holds, remembered so that changes can be told and undone.

Buffers, parameters, flags, hooks, counters and caches are one thing here: items of containers, and tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.check.bits import same_bits, storage_key
from aitune.torch.check.container_state import REMOVED, ContainerState
from aitune.torch.check.free_memory import free_bytes
from aitune.torch.check.tensor_state import TensorState, size_in_bytes
from aitune.torch.check.walk import walk
from aitune.torch.graph.spec import Opaque, constant_or_opaque, is_tensor
from aitune.torch.graph.tree import flatten, path_text

__all__ = ["REMOVED", "Snapshot", "take_snapshot"]

_MOST_COPIED = 2 << 30  # bytes; tensors beyond are watched by digest, and cannot be put back
_SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a module held at one moment; made by :func:`take_snapshot`.

    Attributes:
        containers: Every container of it.
        tensors: Every tensor of it, each once.
        generators: Random number generators that it owns: path, generator, and its state.
    """

    containers: tuple[ContainerState, ...]
    tensors: tuple[TensorState, ...]
    generators: tuple[tuple[str, torch.Generator, torch.Tensor], ...]

    def changes(self, *, deep: bool = False) -> dict[str, Any]:
        """Return what is different now, by path, with the present value; ``REMOVED`` for what is gone.

        What was replaced by an equal value is no change.

        Args:
            deep: Whether to compare parameters and large tensors by value even where no version counter moved.
        """
        before = {id(tensor.value): tensor for tensor in self.tensors}
        found: dict[str, Any] = {t.path: t.value for t in self.tensors if t.changed(deep=deep)}
        found |= self.drawn()
        for container in self.containers:
            for path, old, new in container.differences():
                if not _equal(old, new, before):
                    leaves, structure = flatten(new)
                    found |= {path + path_text(("", *p)): x for p, x in zip(structure.paths(), leaves, strict=True)}
        return found

    def restore(self, *, deep: bool = True) -> list[str]:
        """Put everything back as it was, touching only what differs.

        Args:
            deep: As in :meth:`changes`.

        Returns:
            Paths of tensors that changed and of which no copy was kept.
        """
        for container in self.containers:
            container.restore()
        for _, generator, state in self.generators:
            if not torch.equal(generator.get_state(), state):
                generator.set_state(state)
        return [tensor.path for tensor in self.tensors if not tensor.restore(deep=deep)]

    def drawn(self) -> dict[str, torch.Tensor]:
        """Return the present state of every generator of the module that has moved, by path."""
        states = ((path, generator.get_state(), state) for path, generator, state in self.generators)
        return {path: now for path, now, state in states if not torch.equal(now, state)}

    def storages(self) -> dict[Hashable, str]:
        """Return the path of a tensor for every piece of memory that the module holds."""
        keyed = ((storage_key(t.value), t.path) for t in self.tensors if is_tensor(t.value))
        return {key: path for key, path in keyed if key is not None}


def take_snapshot(module: torch.nn.Module) -> Snapshot:
    """Remember everything that a module holds.

    Values of tensors are copied up to 2 GiB and a quarter of the free memory, parameters last; what is beyond
    is told by digests if it changes.
    """
    containers, found, generators = [], [], []
    for node in walk(module):
        if isinstance(node.value, torch.Generator):
            generators.append((node.path, node.value, node.value.get_state()))
        elif not isinstance(node.value, torch.Tensor):
            containers.append(ContainerState.of(node))
        elif not torch.nn.parameter.is_lazy(node.value):
            found.append(node)
    room = min(_MOST_COPIED, int(free_bytes(torch.device("cpu")) * _SHARE_OF_MEMORY))
    tensors = []
    for node in sorted(found, key=lambda node: isinstance(node.value, torch.nn.Parameter)):
        size = size_in_bytes(node.value)
        tensors.append(TensorState.of(node.path, node.value, copied=size <= room))
        room -= size if size <= room else 0
    return Snapshot(tuple(containers), tuple(tensors), tuple(generators))


def _equal(old: Any, new: Any, before: dict[int, TensorState]) -> bool:
    """Whether a value was replaced by an equal one; what cannot be compared is equal if of one type."""
    old_leaves, old_structure = flatten(old)
    new_leaves, new_structure = flatten(new)
    if old_structure != new_structure:
        return False
    return all(_equal_leaves(a, b, before) for a, b in zip(old_leaves, new_leaves, strict=True))


def _equal_leaves(old: Any, new: Any, before: dict[int, TensorState]) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if is_tensor(old):
        known = before.get(id(old))
        return same_bits(new, old if known is None or known.copy is None else known.copy.to(old.device))
    described = constant_or_opaque((), old)
    return isinstance(described, Opaque) or described.accepts(new)
