"""The exceptions of aitune, one tree.

::

    AITuneError
    ├── AITuneUserInputError (ValueError)     the call cannot be carried out as it was written
    ├── BackendError (RuntimeError)           one candidate did not work out
    │   ├── BackendNotInstalledError (ImportError)   a library of the candidate is missing
    │   ├── BackendUnsupportedError           the candidate cannot serve this module, input or device
    │   ├── BackendBuildError                 the candidate's own library failed
    │   ├── BackendCrashedError               the process that built the candidate ended
    │   ├── BackendTimeoutError (TimeoutError)   the candidate took longer than it may
    │   └── BackendMemoryError (MemoryError)  the candidate took more memory than it may
    ├── CorrectnessError (ArithmeticError)    a candidate computes something else than the module
    ├── CheckpointError (RuntimeError)        a checkpoint cannot be written or used
    │   ├── CheckpointDamagedError (ValueError)   it is not what was written, or no checkpoint at all
    │   ├── CheckpointMismatchError           it belongs to another module, machine or version
    │   └── CheckpointNativeError (PermissionError)   it holds native code, which is loaded only if allowed
    ├── DocumentError (ValueError)            a file of JSON does not say what it should
    ├── LatencyBudgetError (TimeoutError)     nothing answers within the latency that was asked for
    ├── NotCarriedError (RuntimeError)        a module cannot be brought to a worker process
    └── TuneFailedError (RuntimeError)        a module could not be tuned and the caller asked to be told

Whatever leaves a tune, ``KeyboardInterrupt`` and the exceptions of users' code included, carries what was found until
then; :func:`partial_result` reads it.

Every class also derives from the builtin that people expect, so ``except ValueError`` works, and survives pickling
with its fields, so that it can travel from a worker process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = [
    "AITuneError",
    "AITuneUserInputError",
    "BackendBuildError",
    "BackendCrashedError",
    "BackendError",
    "BackendMachineError",
    "BackendMemoryError",
    "BackendNotInstalledError",
    "BackendTimeoutError",
    "BackendUnsupportedError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNativeError",
    "CheckpointWriteError",
    "CorrectnessError",
    "DocumentError",
    "LatencyBudgetError",
    "NotCarriedError",
    "TuneFailedError",
    "partial_result",
]

FOREIGN = (Exception, SystemExit)
"""What foreign code may raise that is a failure of its own. ``KeyboardInterrupt`` is the user's."""


def said(error: BaseException) -> str:
    """Return the message of an exception, whose class may be foreign and unable to say it."""
    try:
        return str(error)
    except FOREIGN as second:
        return f"its message cannot be read, {type(second).__name__} is raised instead"


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Go through an exception and those that it was raised from, or while which it was raised, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def text_of(error: BaseException) -> str:
    """Return an exception in one line or more: its type and its message."""
    return f"{type(error).__name__}: {said(error)}"


class AITuneError(Exception):
    """Base of everything that aitune raises on purpose.

    Args:
        message: What happened and what to do next, one or two sentences.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__), self.args)


class AITuneUserInputError(AITuneError, ValueError):
    """What the caller passed cannot be used; the message says what would be."""


class BackendError(AITuneError, RuntimeError):
    """A backend did not produce a usable engine.

    Args:
        backend: The backend's name.
        reason: Why, in the words that a report shows.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"{backend}: {reason}")
        self.backend = backend
        self.reason = reason


class BackendNotInstalledError(BackendError, ImportError):
    """A library that the backend needs is not installed.

    Args:
        backend: The backend's name.
        library: The import name that was not found.
        extra: The extra of aitune that brings it.
    """

    def __init__(self, backend: str, library: str, extra: str) -> None:
        super().__init__(backend, f"{library} is not installed: pip install 'aitune[{extra}]'")
        self.library = library
        self.extra = extra


class BackendUnsupportedError(BackendError):
    """The backend cannot serve this module, these inputs or this device."""


class BackendMachineError(BackendUnsupportedError):
    """The machine lacks what the backend needs beside its libraries: a compiler, a driver. Not kept as a verdict."""


class BackendBuildError(BackendError):
    """The backend's library failed while it built the engine; the cause is chained."""


class BackendCrashedError(BackendError):
    """The worker process ended while it had the backend in hand: by a signal, or by leaving.

    Args:
        backend: The backend's name.
        reason: How it ended, and the last lines that it printed.
        signal: Number of the signal, None if there was none.
    """

    def __init__(self, backend: str, reason: str, signal: int | None = None) -> None:
        super().__init__(backend, reason)
        self.signal = signal


class BackendTimeoutError(BackendError, TimeoutError):
    """The backend took longer than it may, and was ended.

    Args:
        backend: The backend's name.
        reason: What it was doing, and which limit it reached.
        seconds: The limit.
    """

    def __init__(self, backend: str, reason: str, seconds: float) -> None:
        super().__init__(backend, reason)
        self.seconds = seconds


class BackendMemoryError(BackendError, MemoryError):
    """The backend took more memory than it may, and was ended or refused."""


class CheckpointError(AITuneError, RuntimeError):
    """A checkpoint cannot be written or used.

    Args:
        path: The checkpoint.
        reason: Why, and what to do about it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CheckpointDamagedError(CheckpointError, ValueError):
    """A checkpoint is not what was written, or no checkpoint at all; nothing of it was used."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another module, machine or version.

    Args:
        path: The checkpoint.
        differences: What is different, one sentence each.
        remedy: What to do about it.
    """

    def __init__(self, path: str, differences: tuple[str, ...], remedy: str) -> None:
        super().__init__(path, f"{'; '.join(differences)}. {remedy}")
        self.differences = differences
        self.remedy = remedy


class CheckpointWriteError(CheckpointError, OSError):
    """A checkpoint cannot be written; what was there before is there still.

    Args:
        path: The checkpoint.
        cause: What the system said.
    """

    def __init__(self, path: str, cause: OSError) -> None:
        why = cause.strerror or str(cause)
        super().__init__(path, f"cannot be written: {why}; give another path, or see to that one and save again")
        self.errno = cause.errno


class CheckpointNativeError(CheckpointError, PermissionError):
    """A checkpoint holds native code, which runs with the rights of the process that loads it."""


class DocumentError(AITuneError, ValueError):
    """A file of JSON does not say what it should.

    Args:
        where: The file.
        field: Path of the field; empty for the document as a whole.
        problem: What is wrong with it.
    """

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"{where}: {field + ' ' if field else ''}{problem}")
        self.where = where
        self.field = field
        self.problem = problem


class LatencyBudgetError(AITuneError, TimeoutError):
    """Neither the module nor any candidate is within a latency budget at any batch size.

    Args:
        budget_ms: What was asked for, milliseconds.
        nearest: What came nearest: a backend's description, or ``original``.
        p99_ms: Its 99th percentile of latency, milliseconds.
        batch_size: The batch size of that; None for a graph without a batch axis.
    """

    def __init__(self, budget_ms: float, nearest: str, p99_ms: float, batch_size: int | None) -> None:
        size = "" if batch_size is None else f" at batch size {batch_size}"
        super().__init__(
            f"nothing is within the latency budget of {budget_ms:g} ms; nearest is {nearest} with a p99 of"
            f" {p99_ms:.3g} ms{size}: raise the budget, or tune with smaller batches or other backends"
        )
        self.budget_ms = budget_ms
        self.nearest = nearest
        self.p99_ms = p99_ms
        self.batch_size = batch_size


class NotCarriedError(AITuneError, RuntimeError):
    """A module cannot be brought to a worker process; the message says what stands in the way."""


class CorrectnessError(AITuneError, ArithmeticError):
    """An engine was built, but its outputs are not those of the module.

    Args:
        backend: The backend's name.
        reason: Where and by how much the outputs differ.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"{backend}: {reason}")
        self.backend = backend
        self.reason = reason


class TuneFailedError(AITuneError, RuntimeError):
    """One or more modules could not be tuned; they run as they did before.

    Args:
        failures: Module name to the reason why it was left alone.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        lines = [f"{name}: {reason}" for name, reason in failures.items()]
        super().__init__("not tuned, and running as before: " + "; ".join(lines))
        self.failures = failures


def partial_result(error: BaseException) -> Any:
    """Return what a tune had found when an exception ended it.

    Args:
        error: What ``ait.tune`` or ``Module.tune`` raised, ``KeyboardInterrupt`` included.

    Returns:
        A ``TuneResult`` (of ``Module.tune``: a ``ModuleResult``), None where the exception carries none.
    """
    return getattr(error, "aitune_partial_result", None)


def carry_partial_result(error: BaseException, result: Any) -> None:
    """Let an exception carry what was found before it; of one that takes no attributes nothing is asked."""
    try:
        error.aitune_partial_result = result  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return


def _rebuild(kind: type[AITuneError], state: dict[str, Any], args: tuple[Any, ...]) -> AITuneError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
