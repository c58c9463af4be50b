"""What a dry run would try, as text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.report import numbers
from aitune.torch.report.foreign import one_line

__all__ = ["Candidate", "GraphPlan", "plan_text"]


@dataclass(frozen=True)
class Candidate:
    """A backend that a strategy would try.

    Attributes:
        backend: Its description.
        unsuitable: Why it would not be built; empty if it would.
    """

    backend: str
    unsuitable: str = ""


@dataclass(frozen=True)
class GraphPlan:
    """What would be tried for one graph.

    Attributes:
        module: Name of the module.
        graph: Name of the graph.
        description: Its inputs and outputs in one line; may be empty.
        candidates: In the order in which they would be tried.
        strategy: Description of the strategy; may be empty.
        note: Why nothing would be tried, or what else to know; may be empty.
    """

    module: str
    graph: str
    description: str = ""
    candidates: tuple[Candidate, ...] = ()
    strategy: str = ""
    note: str = ""


def plan_text(plans: Sequence[GraphPlan], width: int | None = None) -> str:
    """Return what would be tried, one paragraph a graph.

    Args:
        plans: One entry a graph.
        width: Columns of text; None takes the terminal's, or 100 where there is none.
    """
    width = shutil.get_terminal_size((100, 24)).columns if width is None else width
    if not plans:
        return "Dry run: nothing would be tried, no call of a module was recorded."
    graphs = numbers.count(len(plans), "graph")
    paragraphs = [f"Dry run: nothing is changed. This would be tried for {graphs}:"]
    paragraphs += ["\n".join(_lines(plan, max(width, 40))) for plan in plans]
    return "\n\n".join(paragraphs)


def _lines(plan: GraphPlan, width: int) -> list[str]:
    strategy = f", {one_line(plan.strategy)}" if plan.strategy else ""
    lines = [f"{one_line(plan.module)}, {one_line(plan.graph)}{strategy}"]
    lines += _wrapped(plan.description, "  ", width) + _wrapped(plan.note, "  note: ", width)
    suitable = [candidate for candidate in plan.candidates if not candidate.unsuitable]
    unsuitable = [candidate for candidate in plan.candidates if candidate.unsuitable]
    lines += [f"  {place}. {one_line(candidate.backend)}" for place, candidate in enumerate(suitable, 1)]
    if not suitable:
        lines.append("  no candidate suits it, so it would stay as it is")
    for candidate in unsuitable:
        lines += _wrapped(f"{candidate.backend}: {candidate.unsuitable}", "  not: ", width)
    return lines


def _wrapped(text: str, label: str, width: int) -> list[str]:
    indent = " " * (len(label) + 2)
    return textwrap.wrap(one_line(text), width, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False)
