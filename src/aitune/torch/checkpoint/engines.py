"""Engines out of a checkpoint: loaded where they fit, built again where they do not and that was asked for."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneError, CheckpointError, CheckpointMismatchError, CheckpointNativeError
from aitune.torch.backend import Backend, Engine
from aitune.torch.backend.guarded import close_engine
from aitune.torch.check import Effort, judge, prepare
from aitune.torch.checkpoint.manifest import SavedGraph
from aitune.torch.checkpoint.recipe import free_options
from aitune.torch.checkpoint.samples import made_up_samples
from aitune.torch.checkpoint.unpacked import Unpacked
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.worker import BuildFolders, build_here, remove_files

__all__ = ["Conditions", "EngineMaker"]

_log = logging.getLogger(__name__)

AGAIN = "ait.load(..., retune=True) builds the engines anew for what is here"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What decides whether an engine is loaded as it is.

    Attributes:
        file: The checkpoint, for messages.
        module_differs: How the module is not the one that was saved, one sentence each.
        environment_differs: How the surroundings are not those of then.
        code_compared: Whether other code or constants would have shown as a difference of the module.
        allow_native: Whether native code, and options that are passed on to libraries, are trusted.
        retune: Whether engines that do not fit are built again.
    """

    file: str
    module_differs: tuple[str, ...]
    environment_differs: tuple[str, ...]
    code_compared: bool
    allow_native: bool
    retune: bool


@dataclass(frozen=True)
class EngineMaker:
    """Makes the engines of one module.

    Attributes:
        module: The module.
        forward: What a call of it runs without aitune.
        name: Its name.
        device: Where it is.
        conditions: What decides.
        unpack: Returns the files of the checkpoint.
        folders: Where builds put theirs.
    """

    module: torch.nn.Module
    forward: Callable[..., Any]
    name: str
    device: torch.device
    conditions: Conditions
    unpack: Callable[[], Unpacked]
    folders: BuildFolders

    def make(self, saved: SavedGraph, graph: GraphSpec) -> Engine:
        """Make the engine of one graph, which was held against the module.

        Raises:
            CheckpointError: If it does not fit, or cannot be trusted, and may not be built again; says what to do.
            AITuneError: If a library is missing, or the build fails.
        """
        assert saved.recipe is not None
        options = free_options(saved.recipe)
        if options and not self.conditions.allow_native:
            raise CheckpointNativeError(
                self.conditions.file,
                f"{saved.chosen} passes {', '.join(options)} on to a library, which may name files to read, write or"
                " run; allow_native=True does that if you trust where the checkpoint comes from",
            )
        samples = made_up_samples(self.module, self.module.forward, graph)
        obstacle = self._obstacle(saved)
        if obstacle is None and saved.folder is not None:
            try:
                return self._loaded(saved, saved.recipe, graph, samples)
            except CheckpointError as error:
                if not self.conditions.retune:
                    raise
                obstacle = error
        if obstacle is not None and not self.conditions.retune:
            raise obstacle
        return self._built(saved, saved.recipe, graph, samples, obstacle)

    def _obstacle(self, saved: SavedGraph) -> CheckpointError | None:
        """Return why an engine is not loaded as it is, None if it may be."""
        assert saved.recipe is not None
        conditions = self.conditions
        if conditions.module_differs:
            return CheckpointMismatchError(conditions.file, conditions.module_differs, AGAIN)
        if saved.folder is None:
            return None
        if conditions.environment_differs and saved.recipe.kept_as != "portable":
            return CheckpointMismatchError(
                conditions.file, conditions.environment_differs, f"{saved.chosen} cannot run here as it is; {AGAIN}"
            )
        if saved.native and not conditions.allow_native:
            return CheckpointNativeError(
                conditions.file,
                f"{saved.chosen} is native code, which runs with your rights: allow_native=True loads it if you trust"
                f" where the checkpoint comes from; {AGAIN}",
            )
        return None

    def _loaded(self, saved: SavedGraph, recipe: Backend[Any], graph: GraphSpec, samples: tuple[Sample, ...]) -> Engine:
        assert saved.folder is not None
        unpacked = self.unpack()
        folder = unpacked.folder / saved.folder
        job = self._job(graph, samples, folder, self.folders.new(self.name, graph.name)[1])
        try:
            engine = recipe.load(job, folder)
        except Exception as error:  # libraries raise anything for files that are not theirs
            raise CheckpointMismatchError(
                self.conditions.file, (f"{saved.chosen} cannot be loaded: {error}",), AGAIN
            ) from error
        weakref.finalize(engine, _let_go, unpacked)  # a temporary folder lasts as long as its engines
        return self._checked(saved, engine, job, thorough=not self.conditions.code_compared)

    def _built(
        self,
        saved: SavedGraph,
        recipe: Backend[Any],
        graph: GraphSpec,
        samples: tuple[Sample, ...],
        obstacle: CheckpointError | None,
    ) -> Engine:
        seconds = saved.trial.build_seconds if saved.trial is not None else None
        took = f"; that took {seconds:.0f} s where it was saved" if seconds else ""
        why = "engines of its kind cannot be kept"
        if obstacle is not None:
            why = "; ".join(getattr(obstacle, "differences", ())) or "native code is not loaded unasked"
        _log.warning("%s %s: %s is built again now%s: %s", self.name, graph.name, saved.chosen, took, why)
        if not samples:
            raise CheckpointError(
                self.conditions.file,
                f"{saved.chosen} cannot be built again: the module takes no inputs that could be made up;"
                " tune it on your own data instead",
            )
        job = self._job(graph, samples, *self.folders.new(self.name, graph.name, recipe.name))
        built = build_here(recipe, job)
        if built.engine is None:
            assert built.error is not None
            if isinstance(built.error, AITuneError):
                raise built.error
            told = f"{type(built.error).__name__}: {built.error}"
            raise CheckpointError(
                self.conditions.file, f"{saved.chosen} cannot be built again here: {told}"
            ) from built.error
        weakref.finalize(built.engine, remove_files, str(job.folder))
        return self._checked(saved, built.engine, job, thorough=True)

    def _job(self, graph: GraphSpec, samples: tuple[Sample, ...], folder: Path, log: Path) -> Job:
        return Job(self.name, self.module, graph, samples, self.device, folder, log)

    def _checked(self, saved: SavedGraph, engine: Engine, job: Job, *, thorough: bool) -> Engine:
        """Return the engine if it computes what the module computes; else it is closed."""
        try:
            self._check(saved, engine, job, thorough=thorough)
        except BaseException:
            close_engine(engine)
            raise
        return engine

    def _check(self, saved: SavedGraph, engine: Engine, job: Job, *, thorough: bool) -> None:
        if not job.samples:
            if thorough:
                raise CheckpointMismatchError(
                    self.conditions.file,
                    (
                        *self.conditions.environment_differs,
                        "code cannot be compared, and no inputs could be made up to check the engine with",
                    ),
                    "tune the module on your own data instead",
                )
            _log.info("%s %s is not checked: no inputs could be made up that it takes", self.name, job.graph.name)
            return
        effort = Effort() if thorough else Effort(synthesised=False, reference=False)
        subject = prepare(self.module, job.graph, job.samples, forward=job.forward, effort=effort)
        judgement = judge(engine.run, subject, precision=engine.precision)
        if not judgement.accepted:
            raise CheckpointMismatchError(
                self.conditions.file,
                (f"{saved.chosen} does not compute what the module computes: {judgement.reason}",),
                AGAIN,
            )


def _let_go(unpacked: Unpacked) -> None:
    """Do nothing: holding the argument until now is what this is for."""
