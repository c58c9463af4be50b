"""The first backend in order that is right and fast enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.torch.trial import Trial
from aitune.torch.tune_strategy.base import ListStrategy

if TYPE_CHECKING:
    from aitune.torch.bench import Bench

__all__ = ["FirstWinsStrategy"]


class FirstWinsStrategy(ListStrategy):
    """Tries backends in order, and takes the first that builds, is right and beats the original.

    Where all fail, the original stays and the result says why.
    """

    def choose(self, bench: Bench) -> Trial:
        """Return the first accepted trial, or the original."""
        for backend in self.candidates(bench.device):
            trial = bench.try_(backend)
            if trial.accepted:
                return trial
        return bench.original()
