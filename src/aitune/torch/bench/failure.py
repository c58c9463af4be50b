"""What a failed build or check is called in a report."""

from __future__ import annotations

from pathlib import Path

from aitune.exceptions import (
    BackendError,
    BackendNotInstalledError,
    BackendUnsupportedError,
    CorrectnessError,
)
from aitune.torch.measure import is_out_of_memory
from aitune.torch.trial import Trial, Verdict

__all__ = ["failed_trial"]

_LONGEST = 400


def failed_trial(backend: str, error: Exception, *, seconds: float | None = None, log: Path | None = None) -> Trial:
    """Turn an exception into the trial that reports it.

    Args:
        backend: Description of the candidate.
        error: What was raised.
        seconds: How long the build took.
        log: Where the builder's output is.
    """
    return Trial(
        backend=backend,
        verdict=_verdict(error),
        reason=_reason(error),
        build_seconds=seconds,
        log_path=str(log) if log is not None and log.exists() and log.stat().st_size else None,
    )


def _verdict(error: Exception) -> Verdict:
    if isinstance(error, BackendNotInstalledError):
        return Verdict.not_installed
    if isinstance(error, BackendUnsupportedError):
        return Verdict.unsupported
    if isinstance(error, CorrectnessError):
        return Verdict.wrong
    if is_out_of_memory(error):
        return Verdict.out_of_memory
    return Verdict.build_failed


def _reason(error: Exception) -> str:
    """Return the first lines of a message, which in compilers' errors may run over pages."""
    text = error.reason if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = " ".join(lines[:3]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
