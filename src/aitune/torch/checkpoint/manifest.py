"""The manifest of a checkpoint: which engines there are, of which graphs of which modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aitune
from aitune.torch.backend import Backend
from aitune.torch.checkpoint.identity import Identity
from aitune.torch.checkpoint.places import Place
from aitune.torch.checkpoint.recipe import read_recipe, recipe_record
from aitune.torch.fields import Fields, parse
from aitune.torch.graph.document import graph_record
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.store.evidence import read_trial, trial_record
from aitune.torch.store.files import KeptFile, checked_files, is_safe_path
from aitune.torch.trial import Trial

__all__ = ["FORMAT", "Manifest", "SavedGraph", "SavedModule"]

FORMAT = 1
KIND = "aitune checkpoint"
_MOST = 10_000
_STEPS = ("module", "attribute", "index", "key")


@dataclass(frozen=True, kw_only=True)
class SavedGraph:
    """One graph with what serves it.

    Attributes:
        graph: The graph; while it is read its fields, since classes and devices are those of the module at hand.
        chosen: Description of the backend, or that the original serves it.
        recipe: The backend, None for the original.
        trial: The trial that it was chosen by, None where there is none.
        folder: Where its engine's files are in the archive, None where the engine cannot be kept or is the original.
        native: Whether the files are native code, or data that leads to it.
    """

    graph: GraphSpec | Fields
    chosen: str
    recipe: Backend[Any] | None = None
    trial: Trial | None = None
    folder: str | None = None
    native: bool = False

    def record(self) -> dict[str, Any]:
        """Return it as a JSON object.

        Raises:
            ValueError: If graph or backend hold something that a file cannot hold.
        """
        assert isinstance(self.graph, GraphSpec)
        return {
            "graph": graph_record(self.graph),
            "chosen": self.chosen,
            "recipe": None if self.recipe is None else recipe_record(self.recipe),
            "trial": None if self.trial is None else trial_record(self.trial),
            "folder": self.folder,
        }

    @classmethod
    def read(cls, record: Fields) -> SavedGraph:
        """Read it.

        Raises:
            DocumentError: If a field is missing or of another kind.
        """
        folder = record.optional("folder", record.text)
        recipe = record.optional("recipe", lambda name: read_recipe(record.object(name)))
        if folder is not None and (not is_safe_path(folder) or recipe is None):
            raise record.error("folder", "is no folder of an engine")
        return cls(
            graph=record.object("graph"),
            chosen=record.text("chosen"),
            recipe=recipe,
            trial=record.optional("trial", lambda name: read_trial(record.object(name))),
            folder=folder,
            native=folder is not None and recipe is not None and recipe.kept_as == "native",
        )


@dataclass(frozen=True, kw_only=True)
class SavedModule:
    """One tuned module.

    Attributes:
        place: Where it is in the object that was saved.
        name: Its name in reports.
        device: Where it was.
        identity: What it was.
        graphs: Its graphs, in order.
    """

    place: Place
    name: str
    device: str
    identity: Identity
    graphs: tuple[SavedGraph, ...]

    def record(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "place": [list(step) for step in self.place],
            "name": self.name,
            "device": self.device,
            "identity": self.identity.record(),
            "graphs": [graph.record() for graph in self.graphs],
        }

    @classmethod
    def read(cls, record: Fields) -> SavedModule:
        """Read it.

        Raises:
            DocumentError: If a field is missing or of another kind.
        """
        place = tuple(_read_step(record, step) for step in record.list("place", 100))
        return cls(
            place=place,
            name=record.text("name", longest=1000),
            device=record.text("device", longest=40),
            identity=Identity.read(record.object("identity")),
            graphs=tuple(SavedGraph.read(item) for item in record.objects("graphs", _MOST)),
        )


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        modules: The tuned modules.
        files: Every file in the archive beside the manifest.
        source: The manifest as it was read, empty for one that is to be written.
    """

    modules: tuple[SavedModule, ...]
    files: tuple[KeptFile, ...]
    source: bytes = field(default=b"", repr=False)

    def text(self) -> str:
        """Return the manifest as it is written."""
        document = {
            "kind": KIND,
            "format": FORMAT,
            "aitune": aitune.__version__,
            "modules": [module.record() for module in self.modules],
            "files": [file.record() for file in self.files],
        }
        return json.dumps(document, indent=1, allow_nan=False)

    @classmethod
    def read(cls, text: bytes, where: str) -> Manifest:
        """Read a manifest.

        Raises:
            DocumentError: If it does not say what a manifest of this version says.
        """
        record = parse(text, where)
        record.word("kind", (KIND,))
        if record.integer("format") != FORMAT:
            version = record.text("aitune", longest=100)
            raise record.error(
                "format",
                f"is {record.integer('format')}, this version of aitune reads {FORMAT};"
                f" it was written by aitune {version}, which reads it",
            )
        files = checked_files(record, "files")
        modules = tuple(SavedModule.read(item) for item in record.objects("modules", _MOST))
        _check_folders(record, modules, files)
        return cls(modules, files, text)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def _read_step(record: Fields, step: object) -> tuple[str, Any]:
    if isinstance(step, list) and len(step) == 2 and step[0] in _STEPS:
        kind, key = step
        if kind == "index" and type(key) is int and key >= 0:
            return kind, key
        if kind != "index" and (type(key) is str or (kind == "key" and type(key) is int)):
            return kind, key
    raise record.error("place", "is no path to a module")


def _check_folders(record: Fields, modules: Sequence[SavedModule], files: Sequence[KeptFile]) -> None:
    for module in modules:
        for graph in module.graphs:
            if graph.folder is not None and not any(file.path.startswith(f"{graph.folder}/") for file in files):
                raise record.error("files", f"has none of the engine in {graph.folder}")
