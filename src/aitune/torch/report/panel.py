"""The block of lines that a live display shows."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

from aitune.torch.report.columns import STYLES
from aitune.torch.report.foreign import one_line
from aitune.torch.report.sentences import figures
from aitune.torch.report.situation import Situation
from aitune.torch.trial import Trial

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Panel"]

_MOST_TRIALS = 12
_VERDICT_WIDTH = 13  # of the longest, not_installed and out_of_memory


class Panel:
    """Turns situations into lines with colour codes.

    Args:
        stream: The terminal, whose colours are asked for.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        terminal = Console(file=stream, force_terminal=True, force_jupyter=False)
        self._drawn = io.StringIO()
        self._console = Console(
            file=self._drawn,
            force_terminal=True,
            force_jupyter=False,
            legacy_windows=False,
            color_system=terminal.color_system,  # type: ignore[arg-type]  # one of its own names
        )

    def lines(self, situation: Situation, now: float, width: int, height: int) -> list[str]:
        """Return at most ``height`` lines of fewer than ``width`` columns.

        Not safe to call from two threads at once.
        """
        texts = [_heading(situation, now), _stage(situation, now)]
        trials = [_trial(trial) for trial in reversed(situation.trials)]
        room = max(min(height - len(texts), _MOST_TRIALS), 0)
        shown = trials if len(trials) <= room else trials[: max(room - 1, 0)]
        texts += shown
        if len(shown) < len(trials) and room:
            texts.append(_plain(f"  and {len(trials) - len(shown)} earlier"))
        self._drawn.seek(0)
        self._drawn.truncate()
        # One column is left free: terminals differ in what they do once a line is full.
        for text in texts[: max(height, 1)]:
            text.truncate(max(width - 1, 1), overflow="ellipsis")
            self._console.print(text, no_wrap=True, soft_wrap=True)
        return self._drawn.getvalue().splitlines()


def _heading(situation: Situation, now: float) -> Text:
    from rich.text import Text

    limit = "" if situation.time_limit is None else f" of {_clock(situation.time_limit)}"
    left = situation.left(now)
    rest = "" if left is None else f", about {_clock(left)} left"
    text = Text.assemble(("aitune ", "bold"), f"{_clock(situation.elapsed(now))}{limit}{rest}  ")
    if not situation.module:
        return text.append(f"recording calls: {situation.calls}")
    place = f" ({situation.place + 1} of {situation.total})" if situation.total else ""
    text.append(one_line(situation.module), style="bold").append(place)
    return text.append(f"  {one_line(situation.graph)}") if situation.graph else text


def _stage(situation: Situation, now: float) -> Text:
    from rich.text import Text

    if not situation.stage:
        return _plain("  ...")
    text = Text.assemble("  ", (f"{one_line(situation.stage):<{_VERDICT_WIDTH}}", "cyan"), "  ")
    text.append(one_line(situation.backend) if situation.backend else "the original", style="bold")
    return text.append(f"  {max(now - situation.since, 0.0):.0f} s")


def _trial(trial: Trial) -> Text:
    from rich.text import Text

    verdict = str(trial.verdict)
    text = Text.assemble(
        "  ", (f"{verdict:<{_VERDICT_WIDTH}}", STYLES.get(verdict, "dim")), "  ", one_line(trial.backend)
    )
    facts = figures(trial)
    if facts:
        text.append(f"  {facts}")
    if not trial.accepted and trial.reason:
        text.append(f"  {one_line(trial.reason, 300)}", style="dim")
    return text


def _plain(line: str) -> Text:
    from rich.text import Text

    return Text(line, style="dim")


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    minutes = whole % 3600 // 60
    return f"{hours}{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
