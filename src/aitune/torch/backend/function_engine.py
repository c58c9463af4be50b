"""The engine that most backends make: a function with facts about it, and maybe files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.torch.backend.artifact import Artifact
from aitune.torch.backend.base import Engine
from aitune.torch.export.narrowing import WHOLE, Narrowing
from aitune.torch.trial import Precision

__all__ = ["EngineFacts", "FunctionEngine"]


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What is known of an engine; see :class:`~aitune.torch.backend.base.Engine` for each."""

    precision: Precision
    reentrant: bool = True
    keeps_module: bool = False
    live_weights: bool = False
    own_errors: bool = False
    notes: tuple[str, ...] = ()
    narrowing: Narrowing = WHOLE


class FunctionEngine(Engine):
    """An engine whose ``run`` is a function of its own, called without a layer in between.

    Args:
        function: Takes what the module's forward takes.
        facts: What is known of it.
        artifact: The engine's files, None if it cannot be kept.
        folder: Where the files are; they have to last as long as the engine.
        on_close: Frees what the function holds beyond memory that Python counts.
        on_refit: Gives the function other weights, by their names in the module; None if it cannot take any.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        facts: EngineFacts,
        artifact: Artifact | None = None,
        folder: Path | None = None,
        on_close: Callable[[], None] | None = None,
        on_refit: Callable[[Mapping[str, torch.Tensor]], None] | None = None,
    ) -> None:
        self.precision = facts.precision
        self.reentrant = facts.reentrant
        self.keeps_module = facts.keeps_module
        self.live_weights = facts.live_weights
        self.own_errors = facts.own_errors
        self.refits = on_refit is not None
        self.ranges = dict(facts.narrowing.ranges)
        self.notes = (*facts.notes, *facts.narrowing.notes)
        self._artifact = artifact
        self._on_close = on_close
        self._on_refit = on_refit
        self._refitted = False
        self._folder = folder
        self.run = function  # type: ignore[method-assign]

    def run(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Refuse: the instance's own attribute is called until the engine is closed."""
        raise RuntimeError("the engine is closed")

    def close(self) -> None:
        """Let go of the function and with it of all that it holds."""
        self.__dict__.pop("run", None)
        on_close, self._on_close = self._on_close, None
        self._on_refit = None
        if on_close is not None:
            on_close()

    def refit(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over changed weights; see :meth:`Engine.refit`."""
        if self._on_refit is None:
            super().refit(state)
        else:
            self._refitted = True
            self._on_refit(state)

    def save(self, folder: Path) -> None:
        """Write the engine's files and a note into ``folder``.

        Raises:
            NotImplementedError: If engines of this kind cannot be kept.
            OSError: If a file is gone or the folder cannot be written.
        """
        if self._refitted:
            raise NotImplementedError("it has newer weights than its files; retune() makes one that can be kept")
        if self._artifact is None or self._folder is None:
            super().save(folder)
        else:
            self._artifact.copy(self._folder, folder)
