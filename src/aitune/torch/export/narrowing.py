"""The part of a graph that an export holds for, where it is less than the whole: read from what the exporter says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.tree import path_text

__all__ = ["WHOLE", "Narrowing", "axis_text", "static", "suggested"]

_FIX = re.compile(r"^\s*(\w+) = (.+?)\s*$", re.MULTILINE)
_LIMITS = re.compile(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)$")


@dataclass(frozen=True)
class Narrowing:
    """Smaller ranges of a graph's dimensions.

    Attributes:
        ranges: Name of a dimension with its smallest and largest size; equal ones make the axis static.
        notes: Why, for a reader.
    """

    ranges: tuple[tuple[str, tuple[int, int]], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: GraphSpec, ranges: Mapping[str, tuple[int, int]], reason: str) -> Narrowing:
        """Make the narrowing of a graph to some ranges, with a note for each axis."""
        if not ranges:
            return WHOLE
        axes = [f"{axis_text(graph, name)} {_extent(*limits)}" for name, limits in ranges.items()]
        return cls(tuple(ranges.items()), (f"serves {'; '.join(axes)} only: {reason}",))


WHOLE = Narrowing()
"""Nothing left out."""


def suggested(text: str, graph: GraphSpec, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Read smaller ranges from an exporter's message about violated constraints.

    ``b = Dim('b', max=63)`` gives a range. Whatever else is said of a dimension (that it is a constant, a multiple
    of something, equal to another one) a graph cannot express: such dimensions become static.

    Args:
        text: The message.
        graph: The graph that was to be exported.
        sizes: Size of each dimension in the example inputs, which static ones keep.

    Returns:
        New ranges by name; empty if the message is about something else.
    """
    dims = graph.dims
    header = re.search(r"Constraints violated \(([^)]*)\)", text)
    if header is None:
        return {}
    blamed = {name.strip() for name in header.group(1).split(",")} & dims.keys()
    found: dict[str, tuple[int, int]] = {}
    for name, fix in _FIX.findall(text.partition("Suggested fixes:")[2]):
        limits = _LIMITS.match(fix)
        if name in dims and limits is not None:
            low = max(dims[name].min, int(limits.group(1) or 1))
            high = min(dims[name].max, int(limits.group(2) or dims[name].max))
            if low <= sizes[name] <= high and (low, high) != (dims[name].min, dims[name].max):
                found.setdefault(name, (low, high))
            continue
        found.update(static({word: sizes[word] for word in (name, *re.findall(r"\w+", fix)) if word in dims}))
    return {**static({name: sizes[name] for name in blamed}), **found}


def static(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return ranges that hold one size each."""
    return {name: (size, size) for name, size in sizes.items()}


def axis_text(graph: GraphSpec, name: str) -> str:
    """Return a dimension with the first axis that has it, as a reader knows it."""
    for spec in graph.inputs.tensors:
        for axis, size in enumerate(spec.shape):
            if isinstance(size, DynamicDim) and size.name == name:
                return f"{name} (axis {axis} of {path_text(spec.path)}, {size.min} to {size.max})"
    return name


def _extent(low: int, high: int) -> str:
    return f"= {low}" if low == high else f"from {low} to {high}"
