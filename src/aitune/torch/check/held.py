"""Outputs that a caller still holds while later calls are made: they must stay what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from aitune.torch.check.bits import copy_of, same_bits
from aitune.torch.check.inputs import Probe
from aitune.torch.check.outcome import Outcome
from aitune.torch.check.sharing import meeting

__all__ = ["HeldOutputs"]

_MOST = 4  # calls whose outputs are held; the first one always is


@dataclass(frozen=True, eq=False)
class _Held:
    probe: Probe
    tensors: list[tuple[str, torch.Tensor]]
    copies: list[torch.Tensor]


@dataclass(eq=False)
class HeldOutputs:
    """The outputs of a candidate's earlier calls.

    Attributes:
        exempt: Outputs, by position, that the module itself hands out in the same memory twice.
    """

    exempt: frozenset[int] = frozenset()
    _held: list[_Held] = field(default_factory=list)

    def mismatch(self, outcome: Outcome) -> str | None:
        """Return what a call did to earlier outputs, None if nothing.

        Args:
            outcome: Of the call that has just been made, with its live tensors.
        """
        fresh = self._tensors(outcome)
        for held in self._held:
            for (name, tensor), kept in zip(held.tensors, held.copies, strict=True):
                if not same_bits(tensor, kept):
                    return f"{name} of an earlier call ({held.probe.label}) is overwritten by a later call"
            for first, second in meeting(self._marked(held.tensors, fresh)):
                if first[0] != second[0]:
                    return f"{second[1]} lies in the memory of {first[1]} of an earlier call, still in use"
        return None

    def add(self, probe: Probe, outcome: Outcome) -> None:
        """Hold the outputs of a call."""
        tensors = self._tensors(outcome)
        self._held.append(_Held(probe, tensors, [copy_of(tensor) for _, tensor in tensors]))
        if len(self._held) > _MOST:
            del self._held[1]

    def scribble(self) -> None:
        """Overwrite everything that is held, as a caller may, and let go of it."""
        for held in self._held:
            for _, tensor in held.tensors:
                try:
                    tensor.detach().fill_(1)
                except RuntimeError:  # noqa: PERF203 - expanded memory, which no caller can write to either
                    continue
        self._held.clear()

    def _tensors(self, outcome: Outcome) -> list[tuple[str, torch.Tensor]]:
        return [
            (name, leaf)
            for i, (name, leaf) in enumerate(outcome.outputs.items())
            if isinstance(leaf, torch.Tensor) and i not in self.exempt
        ]

    @staticmethod
    def _marked(
        old: Sequence[tuple[str, torch.Tensor]], new: Sequence[tuple[str, torch.Tensor]]
    ) -> list[tuple[tuple[int, str], torch.Tensor]]:
        return [((0, name), tensor) for name, tensor in old] + [((1, name), tensor) for name, tensor in new]
