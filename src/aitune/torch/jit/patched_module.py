"""A module that was seen: its place in the hierarchy, its state, and the prints of the guide."""

from __future__ import annotations

import enum
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from aitune.torch.jit.forest import Forest, below
from aitune.torch.jit.history import History

if TYPE_CHECKING:
    from aitune.torch.jit.inspection import Inspection
    from aitune.torch.module.recording import Recording

__all__ = ["JITState", "PatchedModule", "SeenModule", "forest", "history"]


class JITState(enum.Enum):
    """What just-in-time tuning did with a module."""

    INIT = "init"
    RECORDING = "recording"
    TUNED = "tuned"
    EAGER = "eager"
    SKIPPED = "skipped"
    DETACHED = "detached"

    @property
    def sign(self) -> str:
        """The symbol in prints."""
        return _SIGNS[self]

    @property
    def decided(self) -> bool:
        """Whether calls are not looked at any more."""
        return self not in (JITState.INIT, JITState.RECORDING)

    def __str__(self) -> str:
        return self.value


_SIGNS = {
    JITState.INIT: "⏳",
    JITState.RECORDING: "🔴",
    JITState.TUNED: "🎯",
    JITState.EAGER: "⚠️",
    JITState.SKIPPED: "🚫",
    JITState.DETACHED: "☑️",
}


@dataclass(frozen=True)
class SeenModule:
    """A module in the hierarchy, as plain data.

    Attributes:
        name: Name of its class.
        parameters: How many it has.
        level: 0 for a head.
        state: What was done with it.
        backend: Classes of the backends that serve it; empty if none does.
        call_count: Calls while it was looked at.
        reason: Why it is in its state, where there is one to tell.
        children: What it called, in order of the first call.
    """

    name: str
    parameters: int
    level: int
    state: JITState
    backend: str = ""
    call_count: int = 0
    reason: str = ""
    children: tuple[SeenModule, ...] = field(default=())


class PatchedModule:
    """What is known of one module whose calls are, or were, looked at. Does not keep the module alive.

    Args:
        module: The module.
        parent: The one that called it first, None for a head.

    Attributes:
        children: Those that it called, in order of the first call.
        state: See :class:`JITState`.
        call_count: Calls while it was looked at; those of a decided module are not seen.
        backend: Classes of the backends that serve it.
        reason: Why it is in its state.
        recording: Its recorded calls, None before any and once it is decided.
        breaks: Whether it has graph breaks, None before that was looked for.
        fills_containers: Whether it changes lists or dicts that it is passed, which no engine does.
        calm: Recorded calls since it last ran in training mode or for gradients; None if it never did.
        refusals: Why calls of it were not recorded.
        retunes: How often it was tuned anew for sizes that came later.
        watched: Whether it is known that it, or something below it, was tuned.
        inspection: What an inspection gathered, None without one.
    """

    def __init__(self, module: torch.nn.Module, parent: PatchedModule | None) -> None:
        self._module = weakref.ref(module)
        self.kind = type(module).__name__
        self.path = f"{type(module).__module__}.{type(module).__qualname__}"
        self.parent = parent
        self.children: list[PatchedModule] = []
        self.state = JITState.INIT
        self.call_count = 0
        self.parameters = parameter_count(module)
        self.backend = ""
        self.reason = ""
        self.recording: Recording | None = None
        self.breaks: bool | None = None
        self.retunes = 0
        self.fills_containers = False
        self.calm: int | None = None
        self.refusals: set[str] = set()
        self.watched = False
        self.inspection: Inspection | None = None

    @property
    def module(self) -> torch.nn.Module | None:
        """The module, None once it is gone."""
        return self._module()

    @property
    def head(self) -> PatchedModule:
        """The head that it is below, itself where it is one."""
        return self if self.parent is None else self.parent.head

    @property
    def level(self) -> int:
        """0 for a head, one more than its parent's for others."""
        return 0 if self.parent is None else self.parent.level + 1

    @property
    def depth(self) -> int:
        """The level that counts for ``max_depth_level``.

        Modules that only hand on a dict, and can have no engine, are no level: what they call takes their place.
        """
        if self.parent is None:
            return 0
        return self.parent.depth + (not self.parent.fills_containers)

    @property
    def title(self) -> str:
        """Class and size."""
        return f"{self.kind} 📊{short_count(self.parameters)}"

    def __str__(self) -> str:
        backend = f" ({self.backend})" if self.backend else ""
        return (
            f"{self.title} level={self.level}🪜 state={self.state}{self.state.sign}{backend}"
            f" call_count={self.call_count}"
        )

    def __repr__(self) -> str:
        return f"<PatchedModule {self}>"

    def decide(self, state: JITState, reason: str = "", backend: str = "") -> None:
        """Take a final state, and let go of what was recorded."""
        self.state, self.reason, self.backend = state, reason, backend
        self.recording = None

    def below(self) -> list[PatchedModule]:
        """Return everything below, in order of execution, parents first."""
        return list(below(self))

    def as_data(self) -> SeenModule:
        """Return the tree as plain data."""
        return SeenModule(
            self.kind,
            self.parameters,
            self.level,
            self.state,
            self.backend,
            self.call_count,
            self.reason,
            tuple(child.as_data() for child in list(self.children)),
        )

    @staticmethod
    def hierarchy() -> tuple[SeenModule, ...]:
        """Return everything seen that still exists: the heads, each with what is below it."""
        return tuple(head.as_data() for head in forest.heads())

    @staticmethod
    def history() -> list[str]:
        """Return the steps that were taken, in order."""
        return history.lines()

    @staticmethod
    def print_hierarchy() -> None:
        """Print everything seen as a tree."""
        lines = ["JIT Tuning Hierarchy:"]
        for head in forest.heads():
            lines += [f"{'  ' * node.level}├─ {node}" for node in (head, *head.below())]
        print("\n".join(lines))  # noqa: T201 - printing is what it is for

    @staticmethod
    def print_history() -> None:
        """Print the steps that were taken."""
        print(history.text())  # noqa: T201 - printing is what it is for


def parameter_count(module: torch.nn.Module) -> int:
    """Return how many numbers the parameters hold; those of a lazy module that was not called yet count as none."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def short_count(number: int) -> str:
    """Write a count in a few characters: ``128``, ``9.4K``, ``11.7M``."""
    if number < 1000:
        return str(number)
    size, units = number / 1000, ["K", "M", "B"]
    while round(size, 1) >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.1f}{units[0]}"


forest: Forest[PatchedModule] = Forest()
history = History()
