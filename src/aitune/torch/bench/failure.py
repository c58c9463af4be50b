"""What a failed build or check is called in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aitune.exceptions import (
    BackendBuildError,
    BackendCrashedError,
    BackendError,
    BackendMemoryError,
    BackendNotInstalledError,
    BackendTimeoutError,
    BackendUnsupportedError,
    CorrectnessError,
    NotCarriedError,
    text_of,
)
from aitune.torch.backend import Engine
from aitune.torch.measure import is_out_of_memory
from aitune.torch.trial import Trial, Verdict

__all__ = ["error_of", "failed_trial", "log_path", "measured_elsewhere", "refused", "unserved_error"]

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
        log_path=log_path(log),
    )


def log_path(log: Path | None) -> str | None:
    """Return where a builder's output is, None if it printed nothing."""
    return str(log) if log is not None and log.exists() and log.stat().st_size else None


def error_of(trial: Trial) -> Exception | None:
    """Return an exception for a failed trial whose own is not there any more; None for one that did not fail."""
    if trial.verdict in (Verdict.wrong, Verdict.random):
        return CorrectnessError(trial.backend, trial.reason)
    if trial.verdict is Verdict.timed_out:
        return BackendTimeoutError(trial.backend, trial.reason, trial.build_seconds or 0.0)
    kinds: dict[Verdict, type[BackendError]] = {
        Verdict.unsupported: BackendUnsupportedError,
        Verdict.build_failed: BackendBuildError,
        Verdict.crashed: BackendCrashedError,
        Verdict.out_of_memory: BackendMemoryError,
    }
    kind = kinds.get(trial.verdict)
    return None if kind is None else kind(trial.backend, trial.reason)


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
        text = text_of(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = " ".join(lines[:3]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def refused(trial: Trial, error: BackendError) -> tuple[Trial, Exception]:
    """Return the trial of an engine that is turned away, with the exception."""
    failed = failed_trial(trial.backend, error, seconds=trial.build_seconds)
    return replace(trial, verdict=failed.verdict, reason=failed.reason), error


def measured_elsewhere(backend: str, engine: Engine) -> BackendError:
    """Return the error of an engine that serves none of the calls that are measured."""
    notes = "; ".join(engine.notes) or f"only {dict(engine.ranges)}"
    return BackendUnsupportedError(backend, f"no call that is measured is among those that it serves: {notes}")


def unserved_error(backend: str, fallbacks: Mapping[str, int]) -> BackendError | None:
    """Return why a candidate was not what was measured: some of its calls came back from the original."""
    if not fallbacks:
        return None
    reasons = ", ".join(f"{reason} ({count} calls)" for reason, count in fallbacks.items())
    if "engine failed" in fallbacks:
        return BackendBuildError(backend, f"it failed while it was measured: {reasons}")
    return BackendUnsupportedError(backend, f"its calls go to the original: {reasons}")
