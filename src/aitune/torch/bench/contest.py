"""The contest: which of several accepted engines is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aitune.torch.backend import Backend, Engine
from aitune.torch.bench.workload import Workload
from aitune.torch.measure import TIE_MARGIN, Contender, PairedTiming, preferred, rivals
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
        given_away: How many times quicker the candidates may be that lost to it as equals; 1 if none was.
    """

    trial: Trial
    backend: Backend[Any]
    engine: Engine
    call: Callable[..., Any]
    timing: PairedTiming
    position: int
    workload: Workload
    given_away: float = 1.0

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


def winner(entrants: Sequence[Entrant], race: Callable[[Entrant, Entrant, float], PairedTiming]) -> Entrant:
    """Return the best entrant.

    Those whose intervals against the original overlap are raced against the quickest-looking one, so that noise in the
    detour over the original does not decide. What ties give away adds up to the margin of one tie at the most, however
    many contests an entrant comes through.

    Args:
        entrants: At least one.
        race: Compares two entrants, the first as the candidate, which is better if it gains the third argument.
    """
    by_name = {entrant.contender.name: entrant for entrant in entrants}
    contenders = [entrant.contender for entrant in entrants]
    margin = max(0.0, (1 + TIE_MARGIN) / max(entrant.given_away for entrant in entrants) - 1)
    first, *others = rivals(contenders, margin=margin)
    direct = {(first.name, other.name): race(by_name[first.name], by_name[other.name], margin) for other in others}
    best = preferred(contenders, direct, margin=margin)
    if best is first:
        return by_name[first.name]
    gap = direct[first.name, best.name].speedup if (first.name, best.name) in direct else 1.0
    return replace(by_name[best.name], given_away=max(1.0, gap) * by_name[first.name].given_away)
