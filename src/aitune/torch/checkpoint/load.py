"""``ait.load``: the engines of a checkpoint onto a freshly built model or pipeline."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, CheckpointDamagedError, CheckpointMismatchError, DocumentError
from aitune.torch.backend.guarded import close_engine, described
from aitune.torch.checkpoint.archive import check_sums, read_manifest, remove_archive
from aitune.torch.checkpoint.classes import classes_of
from aitune.torch.checkpoint.engines import Conditions, EngineMaker
from aitune.torch.checkpoint.identity import Identity, environment_differences
from aitune.torch.checkpoint.manifest import Manifest, SavedGraph, SavedModule
from aitune.torch.checkpoint.places import module_at, place_text
from aitune.torch.checkpoint.storage import LocalTorchStorage
from aitune.torch.checkpoint.unpacked import unpack
from aitune.torch.config import config
from aitune.torch.fields import Fields
from aitune.torch.graph.document import read_graph
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.handle import Handle, find_handle, tuning_alone
from aitune.torch.module.module import Module, unwrapped
from aitune.torch.module.served import Served
from aitune.torch.module.tune_module import OriginalEngine, module_device
from aitune.torch.report import GraphResult, ModuleResult
from aitune.torch.trial import ORIGINAL
from aitune.torch.tuning.quiet import external_logging_disabled
from aitune.torch.worker import BuildFolders

__all__ = ["load"]

_TIMES = 5  # that a checkpoint is read, where others replace it meanwhile

DeviceMap = str | torch.device | Mapping[str, str | torch.device]


def load(  # noqa: PLR0913 - each is documented
    module: Any,
    path: str | os.PathLike[str],
    storage: LocalTorchStorage | None = None,
    device_map: DeviceMap | None = None,
    disable_external_logging: bool = True,
    *,
    allow_native: bool = False,
    retune: bool = False,
) -> Any:
    """Attach the engines of a checkpoint to the model, or the pipeline, that it was saved from.

    Nothing in a checkpoint is unpickled or run as Python, and no class is imported for it: a name of a container stands
    only for a class that the module's own program has imported already. Digests, weights, code and surroundings are
    compared, and every engine is held against the module on inputs that are made up, before anything is attached. If
    something does not fit, nothing is attached.

    Args:
        module: The original, freshly built, with the weights that it was tuned with.
        path: As :func:`~aitune.torch.save`.
        storage: As :func:`~aitune.torch.save`.
        device_map: Where to move the tuned modules first: one device, or one by object path or name. None leaves them.
        disable_external_logging: Silence other libraries' loggers meanwhile.
        allow_native: Load native code, and pass options on to libraries: only for a checkpoint that you trust like a
            program.
        retune: Build engines anew, with the backends that the checkpoint names, where those in it do not fit.

    Returns:
        ``module``; a root module that was tuned comes back as an :class:`~aitune.torch.Module`.

    Raises:
        AITuneUserInputError: If an argument cannot be used.
        CheckpointDamagedError: If the file is no checkpoint, or not as it was written.
        CheckpointMismatchError: If it belongs to another module, machine or version; says how they differ.
        CheckpointNativeError: If it holds native code, and ``allow_native`` is false.
        OSError: If the file cannot be read.
    """
    _check_flags(disable_external_logging=disable_external_logging, allow_native=allow_native, retune=retune)
    if storage is not None and not isinstance(storage, LocalTorchStorage):
        raise AITuneUserInputError(f"storage must be a LocalTorchStorage, not {storage!r}")
    storage = storage or LocalTorchStorage()
    file = storage.file(path)
    with tuning_alone(), external_logging_disabled(disable_external_logging):
        for left in reversed(range(_TIMES)):
            before = _mark(file)
            try:
                manifest = read_manifest(file)
                check_sums(file, storage)
                loader = _Loader(file, manifest, device_map, allow_native=allow_native, retune=retune)
                made = loader.make_all(module)
                break
            except CheckpointDamagedError:
                if not left or _mark(file) == before:
                    raise
        root = _install(module, made)
    if loader.rebuilt and storage.remove_checkpoint_after_tune:
        remove_archive(file, storage)
    return root


def _mark(file: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced: half of the old one and half of the new one look like damage."""
    try:
        facts = file.stat()
    except OSError:
        return ()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True)
class _Made:
    """A module with what is to be attached to it."""

    saved: SavedModule
    module: torch.nn.Module
    served: tuple[Served, ...]


class _Loader:
    """Makes everything that a checkpoint holds; attaches nothing.

    Args:
        file: The checkpoint.
        manifest: Its manifest.
        device_map: As :func:`load`.
        allow_native: As :func:`load`.
        retune: As :func:`load`.
    """

    def __init__(self, file: Path, manifest: Manifest, device_map: Any, *, allow_native: bool, retune: bool) -> None:
        self._file = file
        self._manifest = manifest
        self._device_map = device_map
        self._allow_native = allow_native
        self._retune = retune
        self._unpack = functools.cache(lambda: unpack(file, manifest, config.cache_dir))
        self.rebuilt = False

    def make_all(self, value: Any) -> list[_Made]:
        """Make the engines of every module; all are closed again if one fails."""
        parts = [(saved, self._part(value, saved)) for saved in self._manifest.modules]
        self._move(parts)
        made: list[_Made] = []
        folders = BuildFolders(config.cache_dir)
        try:
            for saved, part in parts:
                made.append(self._make(saved, part, folders))
        except BaseException:
            for one in made:
                _close(one.served)
            raise
        finally:
            folders.tidy()
        return made

    def _part(self, value: Any, saved: SavedModule) -> torch.nn.Module:
        part = module_at(value, saved.place)
        if part is None:
            raise CheckpointMismatchError(
                str(self._file),
                (f"it has engines for {place_text(saved.place)}, where this {type(value).__name__} has no module",),
                "Pass the model or pipeline that it was saved from",
            )
        return part

    def _move(self, parts: list[tuple[SavedModule, torch.nn.Module]]) -> None:
        if isinstance(self._device_map, Mapping):
            names = {name: part for saved, part in parts for name in (saved.name, place_text(saved.place))}
            unknown = [str(name) for name in self._device_map if name not in names]
            if unknown:
                raise AITuneUserInputError(
                    f"device_map names {', '.join(unknown)}; the tuned modules are {', '.join(names)}"
                )
            for name, device in self._device_map.items():
                names[name].to(_device(device))
        elif self._device_map is not None:
            for _, part in parts:
                part.to(_device(self._device_map))

    def _make(self, saved: SavedModule, module: torch.nn.Module, folders: BuildFolders) -> _Made:
        device = module_device(module)
        empty = [name for name, tensor in module.state_dict(keep_vars=True).items() if tensor.is_meta]
        if empty:
            raise AITuneUserInputError(
                f"{place_text(saved.place)} has no weights yet, {empty[0]} is on meta: load them first, for example"
                " with load_state_dict(..., assign=True)"
            )
        here = Identity.of(module, device, saved.identity.way)
        differs = saved.identity.differences(here)
        if differs and not self._retune:
            raise CheckpointMismatchError(
                str(self._file),
                tuple(f"{place_text(saved.place)}: {one}" for one in differs),
                "Build the model as it was when it was saved, or pass retune=True, which builds the engines anew",
            )
        conditions = Conditions(
            file=str(self._file),
            module_differs=differs,
            environment_differs=environment_differences(saved.identity.facts, here.facts),
            code_compared=saved.identity.tells_code(here),
            allow_native=self._allow_native,
            retune=self._retune,
        )
        maker = EngineMaker(module, _original(module), saved.name, device, conditions, self._unpack, folders)
        served: list[Served] = []
        try:
            for graph in saved.graphs:
                spec = self._spec(saved, graph, module, device)
                served.append(self._serve(graph, spec, maker))
        except BaseException:
            _close(served)
            raise
        if all(one.recipe is None for one in served):
            served = []
        return _Made(saved, module, tuple(served))

    def _spec(self, saved: SavedModule, graph: SavedGraph, module: torch.nn.Module, device: torch.device) -> GraphSpec:
        assert isinstance(graph.graph, Fields)
        signature = CallSignature.of(module.forward)
        try:
            return read_graph(graph.graph, signature, classes_of(module), {saved.device: device})
        except DocumentError as error:
            raise CheckpointDamagedError(str(self._file), f"cannot be used: {error}") from error

    def _serve(self, saved: SavedGraph, graph: GraphSpec, maker: EngineMaker) -> Served:
        if saved.recipe is None:
            return Served(graph, OriginalEngine(maker.forward), ORIGINAL)
        engine = maker.make(saved, graph)
        self.rebuilt = self.rebuilt or bool(maker.conditions.module_differs)
        return Served(graph, engine, described(saved.recipe), saved.recipe)


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise AITuneUserInputError(f"{name} must be True or False, not {value!r}")


def _device(device: Any) -> torch.device:
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise AITuneUserInputError(f"device_map must name devices such as 'cpu' or 'cuda:0', not {device!r}") from error
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise AITuneUserInputError(f"device_map: {device!r} cannot be used here: {error}") from error
    return place


def _original(module: torch.nn.Module) -> Any:
    handle = find_handle(module)
    return handle.original() if handle is not None else module._call_impl


def _install(value: Any, made: list[_Made]) -> Any:
    root = value
    for one in made:
        if one.module is unwrapped(value):
            root = value if type(value) is Module else Module(value, name=one.saved.name)
        handle = find_handle(one.module) or Handle(one.module, name=one.saved.name)
        handle.install(one.served, _result(one))
    return root


def _result(made: _Made) -> ModuleResult:
    graphs = []
    for served in made.served:
        saved = next(
            g for g in made.saved.graphs if isinstance(g.graph, Fields) and g.graph.text("name") == served.graph.name
        )
        graphs.append(
            GraphResult(
                served.graph.name,
                tuple(str(leaf) for leaf in served.graph.inputs.leaves),
                tuple(str(leaf) for leaf in served.graph.outputs.leaves),
                served.backend,
                () if saved.trial is None else (saved.trial,),
                ("loaded from a checkpoint",),
            )
        )
    return ModuleResult(made.saved.name, type(made.module).__name__, tuple(graphs))


def _close(served: list[Served] | tuple[Served, ...]) -> None:
    for one in served:
        close_engine(one.engine)
