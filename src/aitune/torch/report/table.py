"""A result as a table of a fixed width, plain or in colour."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aitune.torch.report import numbers
from aitune.torch.report.columns import Columns
from aitune.torch.report.foreign import one_line
from aitune.torch.report.outcome import EndToEnd, GraphResult, ModuleResult, Outcome
from aitune.torch.report.row import chosen_line, rows

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["STATE_WORDS", "ResultView", "as_text", "end_to_end_line", "headline"]

_NARROWEST = 72  # below, a row of figures does not fit; the terminal wraps then

STATE_WORDS = {
    "tuned": "tuned",
    "original": "left as it was",
    "put_back": "put back: the whole was slower with it",
    "failed": "not tuned, runs as before",
}
"""What a reader is told for each state of a module."""


def as_text(result: Outcome, width: int | None = None, ascii_only: bool | None = None) -> str:
    """Return the table as text without escape sequences.

    Args:
        result: What to show.
        width: Columns of text; None takes the terminal's, or 100 where there is none.
        ascii_only: Whether rules are drawn with ``-``; None decides by what standard output can encode.
    """
    from rich.console import Console

    width = shutil.get_terminal_size((100, 24)).columns if width is None else width
    width = max(width, _NARROWEST)
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,  # in a notebook it would display itself and leave the file empty
        legacy_windows=False,
    )
    console.print(ResultView(result, _stdout_is_ascii() if ascii_only is None else ascii_only))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


class ResultView:
    """Draws a result on a rich console, as wide as the console.

    Args:
        result: What to draw.
        ascii_only: Whether rules are drawn with ``-``.
    """

    def __init__(self, result: Outcome, ascii_only: bool = False) -> None:
        self._result = result
        self._rule = "-" if ascii_only else "─"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        width = options.max_width
        yield Text(headline(self._result), style="bold")
        for name, module in self._result.modules.items():
            yield Text()
            yield from self._module(name, module, width)
        if self._result.end_to_end is not None:
            yield Text()
            yield from _end_to_end(self._result.end_to_end)
        if self._result.notes:
            yield Text()
        for note in self._result.notes:
            yield _hanging("Note: ", one_line(note), "yellow")
        if self._result.environment:
            yield Text()
            facts = ", ".join(f"{key} {value}" for key, value in self._result.environment.items())
            yield Padding(Text(one_line(facts), style="dim"), 0)

    def _module(self, name: str, module: ModuleResult, width: int) -> Iterator[RenderableType]:
        from rich.text import Text

        style = {"tuned": "green", "failed": "red"}.get(module.state, "yellow")
        title = Text.assemble((one_line(name), "bold"), f" ({one_line(module.module_type)}): ")
        yield title.append(STATE_WORDS[module.state], style=style)
        yield Text(self._rule * width, style="dim")
        if module.failure_text:
            yield _hanging("  why: ", one_line(module.failure_text, 1000), "red")
        for place, graph in enumerate(module.graphs):
            if place:
                yield Text()
            yield from _graph(graph, width, module.serves)


def headline(result: Outcome) -> str:
    """Return what happened, in one sentence."""
    if not result.modules:
        text = "No module was tuned"
    elif result.dry_run:
        text = f"Dry run over {numbers.count(len(result.modules), 'module')}: nothing was changed"
    else:
        tuned = sum(module.state == "tuned" for module in result.modules.values())
        text = f"Tuned {tuned} of {numbers.count(len(result.modules), 'module')}"
    text += f" in {numbers.seconds(result.seconds)}" if result.seconds else ""
    if not result.complete:
        text += "; it was interrupted or ran out of time, so some candidates were not tried"
    return text


def end_to_end_line(end: EndToEnd) -> str:
    """Return the figures of the whole function in one line."""
    before, after = (numbers.milliseconds(value * 1e3) for value in (end.original_seconds, end.tuned_seconds))
    heading = "End to end, not decided" if end.note.startswith("undecided") else "End to end"
    return f"{heading}: {numbers.speedup(end.speedup, end.low, end.high)}, {before} before, {after} now"


def _end_to_end(end: EndToEnd) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(end_to_end_line(end), style="bold")
    if end.put_back:
        names = ", ".join(one_line(name) for name in end.put_back)
        yield _hanging("  ", f"put back, because the whole was slower with them: {names}", "yellow")
    if end.note:
        yield _hanging("  ", one_line(end.note), "")


def _graph(graph: GraphResult, width: int, serves: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    name = one_line(graph.name)
    indent = " " * len(name)
    yield _hanging(f"{name}  in:  ", ", ".join(map(one_line, graph.inputs)) or "nothing", "")
    yield _hanging(f"{indent}  out: ", ", ".join(map(one_line, graph.outputs)) or "nothing", "")
    yield _hanging(f"{indent}  runs ", chosen_line(graph, serves), "bold green" if serves else "")
    lines = rows(graph)
    if lines:
        yield Text()
        yield from Columns.for_rows(lines, width).draw(lines)
    for note in graph.notes:
        yield _hanging("  note: ", one_line(note), "yellow")


def _hanging(label: str, text: str, style: str) -> RenderableType:
    """Put ``text`` beside ``label``; its further lines begin below its first."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid()
    grid.add_column(width=len(label), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text, style=style))
    return grid


def _stdout_is_ascii() -> bool:
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    return not encoding.startswith("utf")
