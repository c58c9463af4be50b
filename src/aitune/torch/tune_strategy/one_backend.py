"""One backend, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aitune.torch.backend import Backend
from aitune.torch.backend.guarded import described
from aitune.torch.trial import Trial, Verdict
from aitune.torch.tune_strategy.base import TuneStrategy, checked_backends

if TYPE_CHECKING:
    import torch

    from aitune.torch.bench import Bench

__all__ = ["OneBackendStrategy"]


class OneBackendStrategy(TuneStrategy):
    """Uses one backend.

    What it raises while building, or its being wrong, is raised. A correct backend that is not faster leaves the
    original in place, unless ``enable_performance_validation(False)`` was called.

    Args:
        backend: The backend.
        options: As :class:`~aitune.torch.tune_strategy.base.TuneStrategy`.

    Raises:
        AITuneUserInputError: If ``backend`` is no backend.
    """

    def __init__(self, backend: Backend[Any], **options: Any) -> None:
        super().__init__(**options)
        (self.backend,) = checked_backends("OneBackendStrategy", [backend])

    def candidates(self, device: torch.device) -> tuple[Backend[Any], ...]:  # noqa: ARG002
        """Return the one backend."""
        return (self.backend,)

    def choose(self, bench: Bench) -> Trial:
        """Return the backend's trial, or the original if it is correct but not faster.

        Raises:
            Exception: What the backend raised, or ``CorrectnessError``.
        """
        trial = bench.try_(self.backend)
        if trial.accepted:
            return trial
        if trial.verdict in (Verdict.slower, Verdict.undecided):
            return bench.original()
        raise bench.error(trial)

    def _describe_candidates(self) -> list[str]:
        return [f"backend={described(self.backend)}"]
