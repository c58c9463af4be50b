"""What a failed build or check is called in a report."""

from __future__ import annotations

from pathlib import Path

from aitune.exceptions import (
    BackendCrashedError,
    BackendError,
    BackendMemoryError,
    BackendNotInstalledError,
    BackendTimeoutError,
    BackendUnsupportedError,
    CorrectnessError,
    NotCarriedError,
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


_VERDICTS: tuple[tuple[type[Exception], Verdict], ...] = (
    (BackendNotInstalledError, Verdict.not_installed),
    (BackendUnsupportedError, Verdict.unsupported),
    (BackendCrashedError, Verdict.crashed),
    (BackendTimeoutError, Verdict.timed_out),
    (BackendMemoryError, Verdict.out_of_memory),
    (CorrectnessError, Verdict.wrong),
    (NotCarriedError, Verdict.skipped),
)


def _verdict(error: Exception) -> Verdict:
    for kind, verdict in _VERDICTS:
        if isinstance(error, kind):
            return verdict
    return Verdict.out_of_memory if is_out_of_memory(error) else Verdict.build_failed


def _reason(error: Exception) -> str:
    """Return the first lines of a message, which in compilers' errors may run over pages."""
    if isinstance(error, BackendError):
        text = error.reason
    elif isinstance(error, NotCarriedError):
        text = error.message
    else:
        text = f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = " ".join(lines[:3]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
