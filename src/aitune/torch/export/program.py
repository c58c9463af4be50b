"""A graph as an exported program of ``torch.export``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.export.flat import FlatForward, OutputRoutes, flat_inputs, inputs_to_aim_at
from aitune.torch.export.narrowing import WHOLE, Narrowing, static, suggested
from aitune.torch.export.preserved import preserved
from aitune.torch.export.twin import on_a_twin
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["ExportedGraph", "export_program"]

_TRIES = 4  # the last of which has every dimension static
_NO_ERROR = Exception()


@dataclass(frozen=True)
class ExportedGraph:
    """A graph after ``torch.export``.

    Attributes:
        program: Takes the graph's input tensors one by one, returns each computed output once.
        routes: Where the graph's outputs come from.
        input_names: Name of each input in the program, in the order of ``graph.inputs.tensors``.
        narrowing: The part of the graph that it holds for.
    """

    program: torch.export.ExportedProgram
    routes: OutputRoutes
    input_names: tuple[str, ...]
    narrowing: Narrowing = WHOLE


def export_program(job: Job, backend: str) -> ExportedGraph:
    """Export a job's graph, without gradients, for the whole range of its dimensions if the module allows that.

    Where forward holds for a part of a range only, or for one size, the program is that of the part around the size
    to optimise for; the narrowing says so. The module and the samples are as before afterwards. Global state that
    exporters touch (warnings, logging) is the caller's to keep.

    Args:
        job: What to export.
        backend: Who to name in errors.

    Raises:
        BackendUnsupportedError: If the module cannot be exported, changes its inputs or its state, or computes
            nothing.
    """
    job = on_a_twin(job)
    flat = FlatForward(job)
    program, narrowing = _exported(job, flat, backend)
    _refuse_effects(program, backend)
    if not flat.routes.computed:
        raise BackendUnsupportedError(backend, "forward computes nothing: it returns its inputs")
    return ExportedGraph(program, flat.routes, tuple(program.graph_signature.user_inputs), narrowing)


def _exported(job: Job, flat: FlatForward, backend: str) -> tuple[torch.export.ExportedProgram, Narrowing]:
    """Export with the widest ranges that the exporter allows."""
    graph, small = job.graph, flat_inputs(job)
    program, first = _attempt(job, graph, flat, small, backend)
    if program is not None:
        return program, WHOLE
    if not graph.dims:
        raise _refused(first, backend)
    # What is left of the range is to lie around the size that matters most.
    for inputs in (inputs_to_aim_at(job), small):
        sizes, error = graph.sizes(inputs) or {}, first
        ranges: dict[str, tuple[int, int]] = {}
        for attempt in range(_TRIES):
            if attempt or inputs is not small:
                program, error = _attempt(job, graph.narrowed(ranges), flat, inputs, backend)
            if program is not None:
                return program, Narrowing.of(graph, ranges, _reason(str(first)))
            part = graph.narrowed(ranges)
            if not part.dims:
                break
            found = suggested(str(error), part, sizes) if attempt < _TRIES - 2 else {}
            ranges.update(found or static(sizes))
    raise _refused(first, backend)


def _attempt(
    job: Job, graph: GraphSpec, flat: FlatForward, inputs: tuple[torch.Tensor, ...], backend: str
) -> tuple[torch.export.ExportedProgram | None, Exception]:
    """Export once; return the program, or None with what the exporter said."""
    shapes = (tuple(_dynamic_shapes(graph)),)
    try:
        with preserved(job.module, backend), torch.no_grad():
            return torch.export.export(flat, inputs, dynamic_shapes=shapes, strict=False), _NO_ERROR
    except (BackendUnsupportedError, MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - export runs the user's forward, and raises anything
        return None, error


def _refused(error: Exception, backend: str) -> BackendUnsupportedError:
    reason = _reason(str(error)) or type(error).__name__
    refused = BackendUnsupportedError(backend, f"torch.export cannot capture the module: {reason}")
    refused.__cause__ = error
    return refused


def _dynamic_shapes(graph: GraphSpec) -> list[dict[int, Any]]:
    dims = {name: torch.export.Dim(name, min=dim.min, max=dim.max) for name, dim in graph.dims.items()}
    return [
        {axis: dims[size.name] for axis, size in enumerate(spec.shape) if isinstance(size, DynamicDim)}
        for spec in graph.inputs.tensors
    ]


def _reason(text: str) -> str:
    """Return the exporter's own suggestion, or the start of its message."""
    match = re.search(r"Suggested fixes:\s*(.+)", text)
    return f"torch.export suggests {match.group(1).strip()}" if match else _first_line(text)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def _refuse_effects(program: torch.export.ExportedProgram, backend: str) -> None:
    """Refuse a graph that writes to its inputs or buffers: an engine made of it would not."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    if not any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in nodes):
        return
    signature = program.run_decompositions({}).graph_signature
    if signature.user_inputs_to_mutate:
        raise BackendUnsupportedError(backend, "forward changes its inputs in place")
    if signature.buffers_to_mutate:
        names = ", ".join(name.removeprefix("module.") for name in signature.buffers_to_mutate.values())
        raise BackendUnsupportedError(backend, f"forward changes its state at each call: {names}")
