"""What happens to a module next: a pure function of what was seen and of the settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aitune.torch.jit.config import JITConfig, JITMode
from aitune.torch.trial import Verdict

__all__ = ["CALM", "Action", "Decision", "Rules", "Seen", "after_tune", "decide"]

_PATIENCE = 8
"""Times ``min_samples`` that a module may be called before it is given up for want of a batch axis."""

CALM = 10
"""Calls without gradients in a row after which a module that was trained counts as trained: tuning one whose weights
change again at once is for nothing."""

_LONGER = (20, 80, 320, 1280)
"""Calls that a module must have had once two, three, four, and more of its class went soon after they were tuned."""

_NO_GAIN = frozenset({Verdict.slower, Verdict.undecided})


class Action(enum.Enum):
    """What is done with a module."""

    WAIT = "wait"
    """It stays as it is, and its calls are looked at."""
    SKIP = "skip"
    """Neither it nor what is below it is tuned, as the settings say."""
    LEAVE = "leave"
    """It runs as the program wrote it, and so does everything below it."""
    DESCEND = "descend"
    """It runs as the program wrote it; its children are decided for themselves."""
    CHECK = "check"
    """It is looked for graph breaks first."""
    PLAN = "plan"
    """A dry run: what would be tuned is told."""
    TUNE = "tune"
    """It is tuned."""
    DONE = "done"
    """It is tuned, and everything below it is its engine's matter."""


@dataclass(frozen=True)
class Decision:
    """An action, with its reason in one sentence."""

    action: Action
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a module.

    Attributes:
        kind: Name of its class.
        depth: 0 for a head, one more than its parent's for others; see ``PatchedModule.depth``.
        parameters: How many it has.
        samples: Calls that were recorded.
        calm: Recorded calls since it last ran in training mode or for gradients; None if it never did.
        wasted: How many heads of the class of its head went before their tunes had paid.
        batch_axis: Whether the recorded calls differed in a leading axis.
        device: Where it is.
        obstacle: Why no engine could stand in its place; its children may be without it.
        breaks: Whether it has graph breaks; None before that was looked for.
    """

    kind: str
    depth: int = 0
    parameters: int = 0
    samples: int = 0
    calm: int | None = None
    wasted: int = 0
    batch_axis: bool = False
    device: str = "cpu"
    obstacle: str = ""
    breaks: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings that decide; see :class:`~aitune.torch.jit.config.JITConfig`.

    Attributes:
        released: Whether ``deferred()`` was called.
    """

    mode: JITMode = JITMode.TUNE_EAGER
    released: bool = False
    min_samples: int = 1
    max_depth_level: int = 1
    min_parameters: int = 0
    detect_graph_breaks: bool = False
    skip_modules: tuple[str, ...] = ()
    device: str | None = None
    batch_axis_required: bool = False
    dry_run: bool = False

    @classmethod
    def now(cls, settings: JITConfig, released: bool) -> Rules:
        """Read the settings as they are."""
        return cls(
            mode=settings.mode,
            released=released,
            min_samples=settings.min_samples,
            max_depth_level=settings.max_depth_level,
            min_parameters=settings.min_parameters,
            detect_graph_breaks=settings.detect_graph_breaks,
            skip_modules=settings.skip_modules,
            device=None if settings.device is None else str(settings.device),
            batch_axis_required=settings.batch_axis_required,
            dry_run=settings.dry_run,
        )


def decide(seen: Seen, rules: Rules) -> Decision:
    """Decide about a module that is not decided yet, at the end of a call in which everything was as it should be."""
    if rules.mode is JITMode.INSPECT:
        return Decision(Action.WAIT, "only inspected")
    if seen.kind in rules.skip_modules:
        return Decision(Action.SKIP, f"{seen.kind} is in skip_modules")
    if seen.parameters < rules.min_parameters:
        return Decision(Action.SKIP, f"{seen.parameters} parameters, min_parameters is {rules.min_parameters}")
    if seen.depth > 0 and seen.parameters == 0:
        return Decision(Action.LEAVE, "a part without parameters has little to gain alone")
    if seen.depth > rules.max_depth_level:
        return Decision(Action.LEAVE, f"level {seen.depth}, max_depth_level is {rules.max_depth_level}")
    return _wait(seen, rules) or _refuse(seen, rules) or _go(seen, rules)


def _wait(seen: Seen, rules: Rules) -> Decision | None:
    early = _too_early(seen, rules)
    if early:
        return Decision(Action.WAIT, early)
    if rules.batch_axis_required and not seen.batch_axis:
        if seen.samples < _PATIENCE * rules.min_samples:
            return Decision(Action.WAIT, "no leading axis varied yet")
        return Decision(
            Action.LEAVE,
            f"no leading axis varied in {seen.samples} calls; jit_config.batch_axis_required = False tunes it for"
            " the sizes seen",
        )
    return None


def _too_early(seen: Seen, rules: Rules) -> str:
    if seen.samples < rules.min_samples:
        return f"{seen.samples} of {rules.min_samples} samples"
    if rules.mode is JITMode.TUNE_DEFERRED and not rules.released:
        return "deferred() was not called yet"
    if seen.calm is not None and seen.calm < CALM:
        return f"it was trained {seen.calm} calls ago"
    if seen.wasted > 1 and seen.samples < _LONGER[min(seen.wasted, len(_LONGER) + 1) - 2]:
        return f"{seen.wasted} of its class went soon after they were tuned"
    return ""


def _refuse(seen: Seen, rules: Rules) -> Decision | None:
    if rules.device is not None and not _on(seen.device, rules.device):
        return Decision(Action.LEAVE, f"it is on {seen.device}, jit_config.device is {rules.device}")
    if seen.obstacle:
        return Decision(Action.DESCEND, seen.obstacle)
    return None


def _go(seen: Seen, rules: Rules) -> Decision:
    if rules.detect_graph_breaks and seen.breaks is None:
        return Decision(Action.CHECK)
    if rules.detect_graph_breaks and seen.breaks:
        return Decision(Action.DESCEND, "it has graph breaks")
    return Decision(Action.PLAN if rules.dry_run else Action.TUNE)


def after_tune(serves: bool, failure: str, verdicts: tuple[Verdict, ...], reasons: tuple[str, ...]) -> Decision:
    """Decide about a module that was tuned.

    Args:
        serves: Whether an engine is installed.
        failure: What the tune raised, in words; empty if nothing.
        verdicts: Of every candidate of every graph.
        reasons: One sentence for each verdict, and for each graph that no candidate was tried for.

    Returns:
        DONE; or LEAVE where candidates are right and none is faster, since their parts would not be either; or
        DESCEND where none could be built or was right, since one of its parts may be why.
    """
    if serves:
        return Decision(Action.DONE)
    if failure:
        return Decision(Action.DESCEND, failure)
    if _NO_GAIN.intersection(verdicts):
        return Decision(Action.LEAVE, "no backend is faster than the original")
    told = next((reason for reason in reasons if reason), "no candidate")
    return Decision(Action.DESCEND, f"no backend works: {told}")


def _on(place: str, wanted: str) -> bool:
    return place == wanted or place.split(":", maxsplit=1)[0] == wanted
