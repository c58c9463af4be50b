"""``ait.save``: the engines of a model or pipeline in one file."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError, CheckpointError, CheckpointWriteError
from aitune.torch.checkpoint.archive import write_archive
from aitune.torch.checkpoint.identity import Identity
from aitune.torch.checkpoint.manifest import Manifest, SavedGraph, SavedModule
from aitune.torch.checkpoint.places import Place, place_text, places
from aitune.torch.checkpoint.storage import LocalTorchStorage
from aitune.torch.graph.document import NotWrittenError
from aitune.torch.module.handle import Handle, ModuleState, find_handle
from aitune.torch.module.served import Served
from aitune.torch.report import ModuleResult
from aitune.torch.store.digest import file_digest
from aitune.torch.store.files import KeptFile
from aitune.torch.trial import ORIGINAL, Trial

__all__ = ["save"]

_log = logging.getLogger(__name__)


def save(module: Any, path: str | os.PathLike[str], storage: LocalTorchStorage | None = None) -> Path:
    """Write the engines of a tuned model, or of every tuned module of a pipeline, into one file.

    The file holds engines, graphs and digests of the weights; no weights of the original beyond what engines contain,
    and no sample. Engines that cannot be kept (those of ``torch.compile``) are recorded by their backend and built
    again on loading. Beside it comes ``<name>_sha256_sums.txt``, which ``sha256sum -c`` takes. An older checkpoint is
    replaced at once: whatever happens, the old one or the new one is there.

    Args:
        module: A tuned module, or any object that holds some: a pipeline, a list, a dict.
        path: Name of the file. Without a folder it goes below ``storage.base_folder``, which is ``checkpoints``.
        storage: Further settings.

    Returns:
        The file.

    Raises:
        AITuneUserInputError: If nothing in ``module`` is tuned, or an argument cannot be used.
        CheckpointError: If an engine cannot be written, or the path holds something that is no checkpoint.
        CheckpointWriteError: If the file cannot be written; an ``OSError`` as well.
    """
    storage = _checked(storage)
    file = storage.file(path)
    tuned = [(place, part, handle) for place, part in places(module) if (handle := _tuned(part)) is not None]
    if not tuned:
        raise AITuneUserInputError(
            f"nothing in this {type(module).__name__} is tuned, so there is nothing to save: ait.tune(...) comes first"
        )
    with tempfile.TemporaryDirectory(prefix="aitune-save-") as name:
        folder = Path(name)
        writer = _Writer(file, folder)
        modules = tuple(writer.module(place, part, handle) for place, part, handle in tuned)
        manifest = Manifest(modules, tuple(_listed(folder)))
        try:
            text = manifest.text()
        except ValueError as error:
            raise CheckpointError(str(file), f"cannot be written: {error}") from error
        try:
            write_archive(file, text, folder, storage)
        except OSError as error:
            raise CheckpointWriteError(str(file), error) from error
    return file


def _checked(storage: Any) -> LocalTorchStorage:
    if storage is None:
        return LocalTorchStorage()
    if not isinstance(storage, LocalTorchStorage):
        raise AITuneUserInputError(f"storage must be a LocalTorchStorage, not {storage!r}")
    return storage


def _tuned(module: torch.nn.Module) -> Handle | None:
    handle = find_handle(module)
    return handle if handle is not None and handle.state is ModuleState.TUNED else None


def _listed(folder: Path) -> list[KeptFile]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [KeptFile(path.relative_to(folder).as_posix(), path.stat().st_size, file_digest(path)) for path in found]


class _Writer:
    """Writes engines, numbered, below a folder.

    Args:
        file: The checkpoint, for messages.
        folder: The folder.
    """

    def __init__(self, file: Path, folder: Path) -> None:
        self._file = file
        self._folder = folder
        self._engines = 0

    def module(self, place: Place, module: torch.nn.Module, handle: Handle) -> SavedModule:
        """Write the engines of one module, and return what the manifest says of it."""
        if handle.outdated:
            raise CheckpointError(
                str(self._file),
                f"cannot be written: weights, children or flags of {place_text(place)} are not those that its engines"
                " were made of; ait.handle(module).retune() makes them anew",
            )
        graphs = []
        for served in handle.served:
            graph = self._graph(served, handle.result)
            try:
                graph.record()
            except (NotWrittenError, ValueError) as error:
                if graph.chosen != ORIGINAL:
                    raise CheckpointError(
                        str(self._file), f"{place_text(place)}, {served.graph.name}, cannot be written: {error}"
                    ) from error
                _log.info("%s: %s is left out, the original serves it: %s", handle.name, served.graph.name, error)
                continue
            graphs.append(graph)
        try:
            with handle.awake():
                device = handle.device
                identity = Identity.of(module, device)
        except AITuneError as error:
            raise CheckpointError(
                str(self._file),
                f"cannot be written: the weights of {place_text(place)}, which it has to name, were given up; tune with"
                " config.device_after_tuning 'cpu' or None, and save then",
            ) from error
        return SavedModule(place=place, name=handle.name, device=str(device), identity=identity, graphs=tuple(graphs))

    def _graph(self, served: Served, result: ModuleResult | None) -> SavedGraph:
        if served.recipe is None:
            return SavedGraph(graph=served.graph, chosen=ORIGINAL)
        return SavedGraph(
            graph=served.graph,
            chosen=served.backend,
            recipe=served.recipe,
            trial=_trial(served, result),
            folder=self._engine(served),
        )

    def _engine(self, served: Served) -> str | None:
        name = f"engines/{self._engines}"
        try:
            served.engine.save(self._folder / name)
        except NotImplementedError:
            _log.info("%s cannot be kept: it is built again when the checkpoint is loaded", served.backend)
            return None
        except OSError as error:
            raise CheckpointError(str(self._file), f"{served.backend} cannot be written: {error}") from error
        self._engines += 1
        return name


def _trial(served: Served, result: ModuleResult | None) -> Trial | None:
    graphs = result.graphs if result is not None else ()
    trials = [trial for graph in graphs if graph.name == served.graph.name for trial in graph.trials]
    return next((trial for trial in trials if trial.backend == served.backend and trial.accepted), None)
