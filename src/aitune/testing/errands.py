"""Errands: what a contract suite has done in another interpreter."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.backend import Backend, BackendConfig
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.worker import build_here

__all__ = ["UnpickledError", "answers_of_kept", "description", "outcomes"]


class UnpickledError(AssertionError):
    """Something was unpickled where nothing may be."""


def description(kind: type[Backend[Any]], config: BackendConfig) -> str:
    """Construct a backend, and return how it describes itself."""
    return kind(config).describe()


def answers_of_kept(backend: Backend[Any], job: Job, folder: Path, samples: Sequence[Sample]) -> list[Any]:
    """Load an engine that was kept, without unpickling anything, and return its answers.

    Raises:
        UnpickledError: If the load, or a call, unpickles.
    """
    with _no_pickle(), torch.no_grad():
        engine = backend.load(job, folder)
        answers = [engine.run(*one.args, **one.kwargs) for one in (sample.fresh() for sample in samples)]
        engine.close()
    return answers


def outcomes(backend: Backend[Any], jobs: Sequence[Job]) -> list[str]:
    """Build an engine for each job and call it once; return what each came to: ``served``, or the exception."""
    return [_outcome(backend, job) for job in jobs]


def _outcome(backend: Backend[Any], job: Job) -> str:
    built = build_here(backend, job)
    if built.engine is None:
        return f"{type(built.error).__name__}: {built.error}"
    sample = job.samples[0].fresh()
    try:
        with torch.no_grad():
            built.engine.run(*sample.args, **sample.kwargs)
    except Exception as error:  # noqa: BLE001 - an engine may raise anything; it is not to bring the process down
        return text_of(error)
    finally:
        built.engine.close()
    return "served"


@contextlib.contextmanager
def _no_pickle() -> Iterator[None]:
    """Refuse to unpickle. For a process of its own: the hook stays, idle, as long as the process does."""
    watching = True

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnpickledError("loading an engine must not unpickle: an artifact could then run any code")

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if watching and event == "pickle.find_class":
            refuse()

    sys.addaudithook(hook)
    owners = [(pickle, "load"), (pickle, "loads"), (torch, "load"), (torch.jit, "load")]
    originals = [(owner, name, getattr(owner, name)) for owner, name in owners]
    for owner, name in owners:
        setattr(owner, name, refuse)
    try:
        yield
    finally:
        watching = False
        for owner, name, original in originals:
            setattr(owner, name, original)
