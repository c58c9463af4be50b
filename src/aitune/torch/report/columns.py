"""The columns of a table of trials: side by side where there is room, else two lines a trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aitune.torch.report.foreign import one_line
from aitune.torch.report.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

__all__ = ["STYLES", "Columns"]

STYLES = {"accepted": "green", "wrong": "red", "random": "red", "crashed": "red", "build_failed": "red",
          "out_of_memory": "red", "timed_out": "red", "slower": "yellow", "undecided": "yellow"}  # fmt: skip
"""Colour of a verdict; one that is not here is dim."""

_GAP = 2
_MARK = 1 + _GAP
_LONGEST_REASON = 600  # characters; the whole is in the JSON and HTML forms

Cells = tuple[tuple[str, str], ...]  # one (first line, second line) a column


@dataclass(frozen=True)
class Columns:
    """How the cells of trials are laid out.

    Attributes:
        flat: Whether a trial takes one line of figures; else two.
        widths: Width of each column, without the mark and the gaps.
    """

    flat: bool
    widths: tuple[int, ...]

    @classmethod
    def for_rows(cls, rows: Sequence[Row], width: int) -> Columns:
        """Choose the layout that fits into ``width``."""
        for flat in (True, False):
            widths = _widths(rows, flat, longest_backend=width * 3 // 8)
            excess = _MARK + sum(widths) + _GAP * (len(widths) - 1) - width
            if excess <= 0:
                return cls(flat, widths)
        # Still too wide: the backend's description is what can be wrapped further.
        return cls(False, (max(widths[0] - excess, 12), *widths[1:]))

    def draw(self, rows: Sequence[Row]) -> Iterator[RenderableType]:
        """Yield the heading, then each row; one without figures has its reason in their place."""
        yield self._line("", _heading(self.flat), "dim")
        for row in rows:
            if row.measured:
                yield self._measured(row)
                yield from (self._below(text) for text in _explanations(row))
            else:
                yield self._unmeasured(row)

    def _measured(self, row: Row) -> RenderableType:
        mark, style = (">", "bold green") if row.chosen else ("", "")
        return self._line(mark, _cells(row, self.flat), style, row.verdict)

    def _line(self, mark: str, cells: Cells, style: str, verdict: str = "") -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(width=1)
        texts = []
        for place, (width, (first, second)) in enumerate(zip(self.widths, cells, strict=True)):
            grid.add_column(width=width, overflow="fold")
            shown = first if place else _wrapped(first, width)
            text = Text(shown, style=STYLES.get(verdict, "dim") if first == verdict else style)
            texts.append(text.append(f"\n{second}", style="not bold dim") if second else text)
        grid.add_row(Text(mark, style=style), *texts)
        return grid

    def _unmeasured(self, row: Row) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        before = 2 if self.flat else 1
        verdict_width = max(self.widths[before], len(row.verdict))
        backend_width = sum(self.widths[:before]) + _GAP * (before - 1)
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(width=1)
        grid.add_column(width=backend_width, overflow="fold")
        grid.add_column(width=verdict_width)
        grid.add_column(overflow="fold")
        reasons = Text("\n").join(_explanations(row))
        backend = Text(_wrapped(row.backend, backend_width), style="dim")
        grid.add_row("", backend, Text(row.verdict, style=STYLES.get(row.verdict, "dim")), reasons)
        return grid

    def _below(self, text: Text) -> RenderableType:
        """Put an explanation below the verdict."""
        from rich.padding import Padding

        before = 2 if self.flat else 1
        return Padding(text, (0, 0, 0, _MARK + sum(self.widths[:before]) + _GAP * before))


def _explanations(row: Row) -> list[Text]:
    from rich.text import Text

    texts = [row.reason] if row.reason else []
    if row.chosen or row.verdict == "undecided":
        texts += row.evidence
    lines = [Text(one_line(text, _LONGEST_REASON), overflow="fold") for text in texts]
    return [*lines, Text(f"log: {row.log_path}", style="dim", overflow="fold")] if row.log_path else lines


def _heading(flat: bool) -> Cells:
    names = (
        ("backend", "precision", "verdict", "error (bound)", "speedup", "latency", "build")
        if flat
        else ("backend", "verdict", "error", "speedup", "latency")
    )
    return tuple((name, "") for name in names)


def _cells(row: Row, flat: bool) -> Cells:
    if flat:
        error = f"{row.error} ({row.bound})" if row.error and row.bound else row.error
        latency = f"{row.latency}, {row.batch}" if row.latency and row.batch else row.latency
        speedup = f"{row.ratio} {row.interval}".strip()
        flat_cells = (row.backend, row.precision, row.verdict, error, speedup, latency, row.build)
        return tuple((cell, "") for cell in flat_cells)
    return (
        (row.backend, f"  {row.precision}" if row.precision else ""),
        (row.verdict, f"built in {row.build}" if row.build else ""),
        (row.error, f"max {row.bound}" if row.error and row.bound else ""),
        (row.ratio, row.interval),
        (row.latency, row.batch if row.latency else ""),
    )


def _widths(rows: Sequence[Row], flat: bool, longest_backend: int) -> tuple[int, ...]:
    """Return what each column needs; a backend's description is wrapped beyond ``longest_backend``."""
    from rich.cells import cell_len

    widths = [len(name) for name, _ in _heading(flat)]
    for row in rows:
        for place, cell in enumerate(_cells(row, flat)):
            widths[place] = max(widths[place], *(cell_len(line) for line in cell))
    return (min(widths[0], longest_backend), *widths[1:])


def _wrapped(backend: str, width: int) -> str:
    """Break a description before an option, never inside its name; further lines are indented."""
    from rich.cells import cell_len

    lines = [""]
    for piece in re.findall(r"[^\s(]*\(|[^\s(]+\s*", backend):
        if lines[-1].strip() and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("  ")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
