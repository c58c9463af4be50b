"""The contract of a strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend import Backend
from aitune.torch.backend.guarded import described
from aitune.torch.backend.registry import default_backends, stands_in, superfluous
from aitune.torch.bench.rules import Rules
from aitune.torch.check.check import Check
from aitune.torch.config import checked_seconds, finite
from aitune.torch.measure import DEFAULT_MIN_GAIN, ProfilingConfig
from aitune.torch.trial import Trial

if TYPE_CHECKING:
    import torch

    from aitune.torch.bench import Bench

__all__ = ["ListStrategy", "TuneStrategy", "checked_backends"]


class TuneStrategy(ABC):
    """Chooses what serves a graph, by trials on a bench. One instance may serve any number of modules and threads.

    Subclasses implement :meth:`choose`, and keep nothing of a run on ``self``.

    Args:
        min_speedup_ratio: Gain over the original, as a ratio, below which a candidate is not worth having.
        profiling_config: How speed is measured; None for the defaults.
        check: How outputs are judged; None judges values by the precision that a backend declares.
        time_limit: Seconds for one graph, after which no further candidate is begun; None or infinity for no limit.

    Raises:
        AITuneUserInputError: If an argument cannot be used.
    """

    find_batch_size_by_default = True
    measures_smallest = False
    wants_quickest = False
    """Whether nothing but the quickest candidate is of use: one that is clearly behind is then left in its worker."""
    latency_budget: float | None = None

    def __init__(
        self,
        *,
        min_speedup_ratio: float = DEFAULT_MIN_GAIN,
        profiling_config: ProfilingConfig | None = None,
        check: Check | None = None,
        time_limit: float | None = None,
    ) -> None:
        _need(
            _is_number(min_speedup_ratio) and min_speedup_ratio >= 0,
            "min_speedup_ratio",
            "0 or more",
            min_speedup_ratio,
        )
        _need(
            isinstance(profiling_config, (ProfilingConfig, type(None))),
            "profiling_config",
            "a ProfilingConfig",
            profiling_config,
        )
        _need(isinstance(check, (Check, type(None))), "check", "an ait.Check", check)
        checked_seconds("time_limit", time_limit)
        self.min_speedup_ratio = float(min_speedup_ratio)
        self.profiling_config = profiling_config or ProfilingConfig()
        self.check = check
        self.time_limit = finite(time_limit)
        self._performance_validation = True
        self._correctness_check = True
        self._find_max_batch_size = self.find_batch_size_by_default

    def enable_performance_validation(self, enabled: bool = True) -> TuneStrategy:
        """Demand that a candidate beats the original (on by default). Changes the strategy, and returns it."""
        self._performance_validation = _boolean("enable_performance_validation", enabled)
        return self

    def enable_correctness_check(self, enabled: bool = True) -> TuneStrategy:
        """Check a candidate's outputs (on by default). Changes the strategy, and returns it."""
        self._correctness_check = _boolean("enable_correctness_check", enabled)
        return self

    def enable_find_max_batch_size(self, enabled: bool = True) -> TuneStrategy:
        """Search for the batch size with the best throughput. Changes the strategy, and returns it."""
        self._find_max_batch_size = _boolean("enable_find_max_batch_size", enabled)
        return self

    @property
    def rules(self) -> Rules:
        """What the bench holds candidates to."""
        return Rules(
            min_speedup_ratio=self.min_speedup_ratio,
            profiling=self.profiling_config,
            check=self.check,
            correctness=self._correctness_check,
            performance=self._performance_validation,
            find_batch_size=self._find_max_batch_size,
            smallest=self.measures_smallest,
            quickest=self.wants_quickest,
            latency_budget=self.latency_budget,
            time_limit=self.time_limit,
        )

    @abstractmethod
    def choose(self, bench: Bench) -> Trial:
        """Return the trial whose engine serves the graph.

        Args:
            bench: Runs trials (``bench.try_(backend)``), knows the original (``bench.original()``), and tells which of
                several accepted trials is best (``bench.best(trials)``). It owns the engines.

        Returns:
            An accepted trial of this bench, or ``bench.original()`` to leave the graph alone.
        """

    def candidates(self, device: torch.device) -> tuple[Backend[Any], ...]:  # noqa: ARG002
        """Return what would be tried on a device, in order; for plans and dry runs."""
        return ()

    def describe(self) -> str:
        """Return the strategy as it would be written, defaults left out."""
        parts = self._describe_candidates()
        if self.min_speedup_ratio != DEFAULT_MIN_GAIN:
            parts.append(f"min_speedup_ratio={self.min_speedup_ratio}")
        if self.profiling_config != ProfilingConfig():
            parts.append(f"profiling_config={self.profiling_config}")
        if self.check is not None:
            parts.append(f"check={self.check}")
        if self.time_limit is not None:
            parts.append(f"time_limit={self.time_limit}")
        text = f"{type(self).__name__}({', '.join(parts)})"
        switches = {
            "enable_performance_validation": (self._performance_validation, True),
            "enable_correctness_check": (self._correctness_check, True),
            "enable_find_max_batch_size": (self._find_max_batch_size, self.find_batch_size_by_default),
        }
        return text + "".join(f".{name}({value})" for name, (value, default) in switches.items() if value != default)

    def _describe_candidates(self) -> list[str]:
        return []

    def __repr__(self) -> str:
        return self.describe()


class ListStrategy(TuneStrategy):
    """A strategy over a list of backends.

    Args:
        backends: Candidates in order; None takes those that the project lists for the device and this strategy.
        options: As :class:`TuneStrategy`.

    Raises:
        AITuneUserInputError: If the list is empty or holds something else than backends.
    """

    def __init__(self, backends: Iterable[Backend[Any]] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.backends = None if backends is None else checked_backends(type(self).__name__, backends)

    def candidates(self, device: torch.device) -> tuple[Backend[Any], ...]:
        """Return the candidates on a device, in order."""
        return self._listed(device, self.check)

    def best_of_all(self, bench: Bench) -> Trial | None:
        """Try every candidate; return the best accepted trial, None if there is none."""
        best: Trial | None = None
        candidates = self._listed(bench.device, bench.rules.check)
        slow = bench.build_ahead([one for one in candidates if self.backends is not None or not stands_in(one)])
        last = {id(one) for one in slow}
        for backend in sorted(candidates, key=lambda one: id(one) in last):
            reason = None if self.backends is not None else superfluous(backend, bench.trials)
            trial = bench.try_(backend) if reason is None else bench.skip(backend, reason)
            if trial.accepted:
                best = trial if best is None else bench.best([best, trial])
                bench.close_losers(keep=best)
        return best

    def _listed(self, device: torch.device, check: Check | None) -> tuple[Backend[Any], ...]:
        if self.backends is not None:
            return self.backends
        return default_backends(type(self).__name__, device, lower_precision=check is not None and check.allows_int8)

    def _describe_candidates(self) -> list[str]:
        return [] if self.backends is None else [f"backends=[{', '.join(described(one) for one in self.backends)}]"]


def checked_backends(owner: str, backends: Any) -> tuple[Backend[Any], ...]:
    """Return the candidates as a tuple.

    Raises:
        AITuneUserInputError: If there are none, or one is no backend.
    """
    if isinstance(backends, (str, bytes, Backend)) or not isinstance(backends, Iterable):
        raise AITuneUserInputError(f"{owner}: backends must be a list of backends, not {backends!r}")
    chosen = tuple(backends)
    if not chosen:
        raise AITuneUserInputError(f"{owner}: the list of backends is empty; leave it out for the default candidates")
    for one in chosen:
        if not isinstance(one, Backend):
            hint = "; create it by calling the class" if isinstance(one, type) and issubclass(one, Backend) else ""
            raise AITuneUserInputError(f"{owner}: {one!r} is no backend{hint}")
    return chosen


def _boolean(name: str, value: Any) -> bool:
    _need(isinstance(value, bool), name, "True or False", value)
    return bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _need(holds: bool, name: str, allowed: str, value: Any) -> None:
    if not holds:
        raise AITuneUserInputError(f"{name} must be {allowed}, not {value!r}")
