"""What became of a tune: frozen plain values, which everything that shows a result reads."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aitune.torch.report.frozen_map import FrozenMap
from aitune.torch.trial import Trial

__all__ = ["ORIGINAL", "EndToEnd", "GraphResult", "ModuleResult", "Outcome", "State"]

ORIGINAL = "original"
"""What ``GraphResult.chosen`` says where no backend was chosen."""

State = Literal["tuned", "original", "put_back", "failed"]


@dataclass(frozen=True)
class GraphResult:
    """What became of one graph.

    Attributes:
        name: Such as ``graph0``.
        inputs: One description a leaf, such as ``x: float32[batch0=1..8, 16]``.
        outputs: The same for what forward returns.
        chosen: Description of the backend that serves it, ``"original"`` if the graph was left alone.
        trials: Every attempt, in the order in which they were made.
        notes: What a reader should know beside the trials.
        recalled: Whether an earlier tune chose, so that no other candidate was tried.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    chosen: str = ORIGINAL
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    recalled: bool = False

    @property
    def chosen_trial(self) -> Trial | None:
        """The accepted trial of the chosen backend; None if the graph was left alone."""
        return next((trial for trial in self.trials if trial.accepted and trial.backend == self.chosen), None)


@dataclass(frozen=True)
class ModuleResult:
    """What became of one module.

    Attributes:
        name: The name of its handle.
        module_type: Name of its class.
        graphs: One entry a graph.
        failure: Why it could not be tuned and was left as it was; None if nothing failed.
        error: The exception behind ``failure``. It does not count when results are compared, and a pickled
            result leaves it out if it does not survive pickling; ``failure`` stays.
        put_back: Whether it was tuned and then put back, because the whole got slower with it.
    """

    name: str
    module_type: str
    graphs: tuple[GraphResult, ...] = ()
    failure: str | None = None
    error: BaseException | None = field(default=None, compare=False)
    put_back: bool = False

    @property
    def state(self) -> State:
        """``tuned`` if an engine serves at least one graph; else why none does."""
        if self.failure is not None or self.error is not None:
            return "failed"
        if self.put_back:
            return "put_back"
        return "tuned" if any(graph.chosen != ORIGINAL for graph in self.graphs) else "original"

    @property
    def serves(self) -> bool:
        """Whether calls go to what the graphs chose; not if it failed or was put back."""
        return self.state in ("tuned", "original")

    @property
    def failure_text(self) -> str:
        """Why it failed, in words; empty if it did not."""
        if self.failure:
            return self.failure
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"

    def __getstate__(self) -> dict[str, Any]:
        error = self.error if _survives_pickling(self.error) else None
        failure = self.failure if error is self.error else self.failure_text
        return {**self.__dict__, "error": error, "failure": failure}


@dataclass(frozen=True)
class EndToEnd:
    """The whole tuned function, timed with its modules tuned against untuned.

    Attributes:
        original_seconds: Median time of one call with every module as it was.
        tuned_seconds: Median time of one call as it is left now.
        speedup: First over second, from paired blocks.
        low: Lower end of the speedup's confidence interval.
        high: Upper end of the speedup's confidence interval.
        put_back: Names of modules that were put back because the whole was slower with them.
        note: What a reader should know, such as why it was not measured better.
    """

    original_seconds: float
    tuned_seconds: float
    speedup: float
    low: float
    high: float
    put_back: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, repr=False)
class Outcome:
    """The values of a :class:`~aitune.torch.report.result.TuneResult`, which adds the ways to show them.

    Attributes:
        modules: One entry for each module whose turn came, by name, in the order in which they were tuned.
        end_to_end: Figures of the whole function, None if it was not timed.
        seconds: How long the tune took.
        environment: Versions and hardware by name.
        notes: What a reader should know beside the modules.
        dry_run: Whether nothing was changed.
        complete: False if it was interrupted or ran out of time.
    """

    modules: Mapping[str, ModuleResult] = field(default_factory=dict)
    end_to_end: EndToEnd | None = None
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    complete: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", FrozenMap(self.modules))
        object.__setattr__(self, "environment", FrozenMap(self.environment))
        object.__setattr__(self, "notes", tuple(self.notes))


def _survives_pickling(error: BaseException | None) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception of any library may refuse in any way, when written or when read
        return False
    return True
