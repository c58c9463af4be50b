"""The cargo: an assignment in a folder, on its way to a worker.

It is written with ``torch.save`` by cloudpickle, so that classes of scripts and notebooks travel as code, and read with
``mmap``, so that weights are in memory once however many workers read them. What a module holds of aitune itself stays
behind: torch leaves the slot out of every copy.
"""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import torch

from aitune.exceptions import FOREIGN, AITuneError, NotCarriedError, said, text_of
from aitune.torch.check import Reference
from aitune.torch.export.program import export_program
from aitune.torch.worker.assignment import Assignment
from aitune.torch.worker.module_files import modules_without_files
from aitune.torch.worker.stand_in import StandIn

__all__ = ["definitions_travel", "keep_reference", "kept_reference", "load", "pack", "pack_program"]

_log = logging.getLogger(__name__)

_ASSIGNMENT = "assignment.pt"
_PROGRAM = "module.pt2"
_REFERENCE = "reference.pt"

_REGISTRY = threading.Lock()
"""Held while cloudpickle's registry, which is the process's, says more than the user told it."""


def pack(assignment: Assignment, folder: Path) -> None:
    """Write an assignment into a folder, its module as it is, or as an exported program where it does not pickle.

    Raises:
        NotCarriedError: If neither can be written.
    """
    try:
        _write(assignment, folder)
    except NotCarriedError:
        raise
    except FOREIGN as error:  # what a module holds may refuse to be pickled in any way
        pack_program(assignment, folder, _culprit(assignment.job.module, error))


def pack_program(assignment: Assignment, folder: Path, why: str) -> None:
    """Write an assignment whose module travels as an exported program, made here.

    Args:
        assignment: The assignment.
        folder: Where to.
        why: Why the module itself cannot travel.

    Raises:
        NotCarriedError: If it cannot be exported or written either.
    """
    job = assignment.job
    _log.info("%s: %s; it is exported in this process instead, which cannot be interrupted", job.name, why)
    try:
        exported = export_program(job, "the export for a worker process")
        with _room_on_disk(folder):
            torch.export.save(exported.program, str(folder / _PROGRAM))
        hollow = replace(job, module=StandIn(job.graph, exported.routes, training=job.module.training))
        _write(replace(assignment, job=hollow), folder)
    except NotCarriedError:
        raise
    except FOREIGN as error:
        text = error.message if isinstance(error, AITuneError) else text_of(error)
        raise NotCarriedError(
            f"{job.name} cannot be brought to a worker process: {why}, and it cannot travel as an exported program:"
            f" {text}"
        ) from error


def load(folder: Path) -> Assignment:
    """Read an assignment; weights are mapped from the file, and private to the reader."""
    assignment: Assignment = torch.load(folder / _ASSIGNMENT, mmap=True, weights_only=False)
    if isinstance(assignment.job.module, StandIn):
        assignment.job.module.fill(torch.export.load(str(folder / _PROGRAM)).module())
    return assignment


def keep_reference(reference: Reference, folder: Path) -> None:
    """Write a reference beside the assignment."""
    part = folder / f"{_REFERENCE}.part"
    _save(reference, part)
    part.replace(folder / _REFERENCE)


def kept_reference(folder: Path, largest: int | None = None) -> Reference | None:
    """Read the reference; None if there is none yet.

    Args:
        folder: Where the cargo is.
        largest: Size in bytes beyond which eager's own answers stand for it, with that as the reason.
    """
    file = folder / _REFERENCE
    if not file.exists():
        return None
    size = file.stat().st_size
    if largest is not None and size > largest:
        return Reference("eager", f"its values take {size / 1e9:.2g} GB, too much to be kept twice", ())
    reference: Reference = torch.load(file, weights_only=False)
    return reference


@contextlib.contextmanager
def definitions_travel() -> Iterator[None]:
    """Let what is defined in modules that no other process can import travel as code."""
    with _REGISTRY:
        known = cloudpickle.list_registry_pickle_by_value()
        registered = [module for module in modules_without_files() if module.__name__ not in known]
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _write(assignment: Assignment, folder: Path) -> None:
    with _room_on_disk(folder), definitions_travel():
        part = folder / f"{_ASSIGNMENT}.part"
        _save(assignment, part)
        part.replace(folder / _ASSIGNMENT)  # not written in place: a worker may have an earlier one mapped


def _save(value: Any, file: Path) -> None:
    with file.open("wb") as stream:
        calm = _Calm(stream)
        torch.save(value, cast("IO[bytes]", calm), pickle_module=cloudpickle, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    if calm.error is not None:
        raise calm.error


class _Calm(io.RawIOBase):
    """Writes to a file as long as that works, and remembers why it did not.

    torch's writer of archives writes its end in a destructor, and a failure there ends the process.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Write, and say so in any case."""
        if self.error is None:
            try:
                self._stream.write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush; what goes wrong is remembered as well."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self.error = error


@contextlib.contextmanager
def _room_on_disk(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError) as error:
        # torch writes archives in C++ and says no more than this where the disk is full.
        if isinstance(error, OSError) or "PytorchStreamWriter" in str(error) or "Parent directory" in str(error):
            shutil.rmtree(folder, ignore_errors=True)
            raise NotCarriedError(
                f"cannot write below {folder}, from where workers read the module: {error}"
            ) from error
        raise


def _culprit(module: torch.nn.Module, error: BaseException) -> str:
    """Return what of a module does not pickle, in words."""
    for name, part in module.named_modules():
        for key, value in part.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules", "_compiled_call_impl"):
                continue
            try:
                cloudpickle.dumps(value)
            except FOREIGN as reason:  # as above
                where = f"{name}.{key}" if name else key
                return f"its {where} does not pickle ({type(reason).__name__}: {_first_line(reason)})"
    return f"it does not pickle ({type(error).__name__}: {_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return (said(error).strip().splitlines() or [""])[0][:200]
