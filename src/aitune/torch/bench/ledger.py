"""The ledger: what was found out about each candidate of one graph, told to whoever listens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from aitune.exceptions import BackendBuildError
from aitune.torch.backend import Backend
from aitune.torch.bench.shelf import Known
from aitune.torch.events import TrialFinished, publish
from aitune.torch.measure import PairedTiming
from aitune.torch.trial import Trial

__all__ = ["Ledger"]

_log = logging.getLogger(__name__)


class Ledger:
    """Finished trials, in order.

    Args:
        module: Name of the module.
        graph: Name of its graph.
    """

    def __init__(self, module: str, graph: str) -> None:
        self._module = module
        self._graph = graph
        self._errors: dict[int, Exception] = {}
        self.trials: list[Trial] = []
        self.findings: list[tuple[Backend[Any], Known]] = []

    def note(
        self,
        backend: Backend[Any],
        trial: Trial,
        error: Exception | None = None,
        timing: PairedTiming | None = None,
    ) -> Trial:
        """Add a finished trial, publish it, and return it.

        Args:
            backend: The candidate.
            trial: Its record.
            error: The exception behind a failure.
            timing: Its figures against the original.
        """
        self.findings.append((backend, Known(trial, timing)))
        if error is not None:
            self._errors[id(trial)] = error
        self.trials.append(trial)
        publish(TrialFinished(self._module, self._graph, trial))
        reason = f": {trial.reason}" if trial.reason else ""
        _log.info("%s %s: %s is %s%s", self._module, self._graph, trial.backend, trial.verdict, reason)
        return trial

    def recall(self, trials: Iterable[Trial]) -> None:
        """Take over the trials of an earlier tune, in place of those that are there."""
        self.trials[:] = trials

    def error(self, trial: Trial) -> Exception:
        """Return the exception behind a trial that failed."""
        return self._errors.get(id(trial)) or BackendBuildError(trial.backend, trial.reason)
