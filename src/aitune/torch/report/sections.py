"""Headed lists of names with words, as text: what the doctor prints."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aitune.torch.report.foreign import one_line
from aitune.torch.report.frozen_map import FrozenMap

__all__ = ["Section", "sections_text"]

_NARROWEST = 60
_WIDEST_NAME = 46
_MARKS = {"good": "+", "bad": "-"}


@dataclass(frozen=True)
class Section:
    """A headed list.

    Attributes:
        title: The heading.
        entries: Words by name, in order.
        marks: ``"good"`` or ``"bad"`` by name; others have no mark.
    """

    title: str
    entries: Mapping[str, str]
    marks: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))


def sections_text(sections: Sequence[Section], width: int | None = None) -> str:
    """Return lists as text without escape sequences, wrapped to ``width`` columns (None: the terminal's, or 100)."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(shutil.get_terminal_size((100, 24)).columns if width is None else width, _NARROWEST)
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    longest = max((len(name) for section in sections for name in section.entries), default=1)
    for section in sections:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=1)
        grid.add_column(width=min(longest, _WIDEST_NAME, width // 2), overflow="fold")
        grid.add_column(overflow="fold")
        for name, text in section.entries.items():
            mark = _MARKS.get(section.marks.get(name, ""), "")
            grid.add_row(mark, Text(one_line(name), overflow="fold"), Text(one_line(text), overflow="fold"))
        console.print(Text(section.title))
        console.print(grid)
        console.print()
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())
