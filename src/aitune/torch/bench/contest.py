"""The contest: which of several accepted engines is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aitune.torch.backend import Backend, Engine
from aitune.torch.bench.workload import Workload
from aitune.torch.measure import Contender, PairedTiming, preferred, rivals
from aitune.torch.trial import PRECISIONS, Trial

__all__ = ["Entrant", "winner"]


@dataclass(frozen=True)
class Entrant:
    """An accepted candidate with its open engine.

    Attributes:
        trial: Its record.
        backend: Its recipe.
        engine: Its engine.
        call: The call path with the engine behind it.
        timing: Its figures against the original.
        position: Its place in the order of trials.
        workload: The calls that it was measured with.
    """

    trial: Trial
    backend: Backend[Any]
    engine: Engine
    call: Callable[..., Any]
    timing: PairedTiming
    position: int
    workload: Workload

    @property
    def contender(self) -> Contender:
        """What decides between it and others."""
        return Contender(
            name=str(self.position),
            timing=self.timing,
            storable=type(self.engine).save is not Engine.save,
            error_class=PRECISIONS.index(self.engine.precision),
            complexity=self.backend.complexity,
            position=self.position,
        )


def winner(entrants: Sequence[Entrant], race: Callable[[Entrant, Entrant], PairedTiming]) -> Entrant:
    """Return the best entrant.

    Those whose intervals against the original overlap are raced against the quickest-looking one, so that noise in the
    detour over the original does not decide.

    Args:
        entrants: At least one.
        race: Compares two entrants, the first as the candidate.
    """
    by_name = {entrant.contender.name: entrant for entrant in entrants}
    contenders = [entrant.contender for entrant in entrants]
    first, *others = rivals(contenders)
    direct = {(first.name, other.name): race(by_name[first.name], by_name[other.name]) for other in others}
    return by_name[preferred(contenders, direct).name]
