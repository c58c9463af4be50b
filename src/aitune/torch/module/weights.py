"""Noticing that a module's state is no longer the one an engine was built from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.graph.accessor import Names, compiled

__all__ = ["ALWAYS", "CHUNK", "StateWatch"]

ALWAYS = 64
"""Up to this many state tensors are all looked at in every call (decision 14)."""
CHUNK = 32
"""Beyond ``ALWAYS``, how many are looked at in one call, in rotation, beside the first and the last."""


@dataclass(frozen=True)
class _Entry:
    """One parameter or buffer as it was.

    Attributes:
        owner: The dict of the module that holds it.
        key: Its name there.
        tensor: The object.
        version: Its version counter, None for an inference tensor, which has none.
        place: Its dtype and address, which a cast or a move changes without touching the version.
    """

    owner: dict[str, Any]
    key: str
    tensor: torch.Tensor
    version: int | None
    place: tuple[torch.dtype, int]

    @property
    def changed(self) -> bool:
        """Whether it is another tensor, or has other contents, or lies elsewhere."""
        return self.owner.get(self.key) is not self.tensor or self.spoiled

    @property
    def spoiled(self) -> bool:
        """Whether the tensor itself has other contents, or lies elsewhere, for good."""
        return _version(self.tensor) != self.version or _place(self.tensor) != self.place


class StateWatch:
    """Remembers every parameter, buffer and other tensor of a module: identity, version, dtype and memory.

    Args:
        module: The module as it was when its engines were validated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._entries = tuple(_entries(module))

    @property
    def changed(self) -> bool:
        """Look at everything; for the slow path."""
        return any(entry.changed for entry in self._entries)

    @property
    def spoiled(self) -> bool:
        """Whether a tensor itself changed: unlike one that was swapped for a while, it does not come back."""
        return any(entry.spoiled for entry in self._entries)

    def conditions(self, names: Names) -> list[str]:
        """Return expressions for generated source that are all true while no change shows.

        Identities and version counters of up to ``ALWAYS`` tensors are compared, of more in rotation; dtype and memory
        of one tensor for each dtype and device, since a cast or a move takes them all.

        Args:
            names: Where the expressions will find their objects.
        """
        firsts = {(entry.tensor.dtype, entry.tensor.device): entry for entry in reversed(self._entries)}
        moves = [_unmoved(entry, names) for entry in firsts.values()]
        if len(self._entries) <= ALWAYS:
            return [*moves, *(_unchanged(entry, names) for entry in self._entries)]
        chunks = [self._entries[i : i + CHUNK] for i in range(0, len(self._entries), CHUNK)]
        functions = []
        for chunk in chunks:
            scope = Names()
            tests = " and ".join(_unchanged(entry, scope) for entry in chunk)
            functions.append(compiled("unchanged", "", [f"return {tests}"], scope))
        turn = names.of(itertools.cycle(functions).__next__, "turn")
        ends = (self._entries[0], self._entries[-1])
        return [*moves, *(_unchanged(entry, names) for entry in ends), f"{turn}()()"]


def _entries(module: torch.nn.Module) -> Iterator[_Entry]:
    for child in module.modules():
        for owner in (child._parameters, child._buffers, child.__dict__):
            for key, tensor in owner.items():
                if isinstance(tensor, torch.Tensor):
                    yield _Entry(owner, key, tensor, _version(tensor), _place(tensor))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _place(tensor: torch.Tensor) -> tuple[torch.dtype, int]:
    try:
        return tensor.dtype, tensor.data_ptr()
    except RuntimeError:  # no storage: lazy parameters, tensors on meta
        return tensor.dtype, 0


def _unchanged(entry: _Entry, names: Names) -> str:
    tensor = names.of(entry.tensor, "tensor")
    same = f"{names.of(entry.owner, 'owner')}[{entry.key!r}] is {tensor}"
    return same if entry.version is None else f"{same} and {tensor}._version == {entry.version}"


def _unmoved(entry: _Entry, names: Names) -> str:
    tensor = names.of(entry.tensor, "tensor")
    dtype, address = entry.place
    same = f"{tensor}.dtype is {names.of(dtype, 'dtype')}"
    return f"{same} and {tensor}.data_ptr() == {address}" if address else same
