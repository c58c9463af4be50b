"""A graph as an exported program of ``torch.export``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.export.flat import FlatForward, OutputRoutes, flat_inputs
from aitune.torch.export.preserved import preserved
from aitune.torch.export.twin import on_a_twin
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.graph.tree import path_text

__all__ = ["ExportedGraph", "export_program"]


@dataclass(frozen=True)
class ExportedGraph:
    """A graph after ``torch.export``.

    Attributes:
        program: Takes the graph's input tensors one by one, returns each computed output once.
        routes: Where the graph's outputs come from.
        input_names: Name of each input in the program, in the order of ``graph.inputs.tensors``.
    """

    program: torch.export.ExportedProgram
    routes: OutputRoutes
    input_names: tuple[str, ...]


def export_program(job: Job, backend: str) -> ExportedGraph:
    """Export a job's graph for the whole range of its dimensions, without gradients.

    The module and the samples are as before afterwards. Global state that exporters touch (warnings, logging)
    is the caller's to keep.

    Args:
        job: What to export.
        backend: Who to name in errors.

    Raises:
        BackendUnsupportedError: If the module cannot be exported, holds for a part of the range only, changes
            its inputs or its state, or computes nothing.
    """
    job = on_a_twin(job)
    flat = FlatForward(job)
    inputs = flat_inputs(job)
    shapes = (tuple(_dynamic_shapes(job.graph)),)
    try:
        with preserved(job.module, backend), torch.no_grad():
            program = torch.export.export(flat, inputs, dynamic_shapes=shapes, strict=False)
    except (BackendUnsupportedError, MemoryError, OSError):
        raise
    except Exception as error:  # export runs the user's forward, and raises anything
        raise BackendUnsupportedError(backend, _reason(error, job.graph)) from error
    _refuse_effects(program, backend)
    if not flat.routes.computed:
        raise BackendUnsupportedError(backend, "forward computes nothing: it returns its inputs")
    return ExportedGraph(program, flat.routes, tuple(program.graph_signature.user_inputs))


def _dynamic_shapes(graph: GraphSpec) -> list[dict[int, Any]]:
    dims = _export_dims(graph)
    return [
        {axis: dims[size.name] for axis, size in enumerate(spec.shape) if isinstance(size, DynamicDim)}
        for spec in graph.inputs.tensors
    ]


def _export_dims(graph: GraphSpec) -> dict[str, Any]:
    """Return dimensions of ``torch.export`` by name; those of one unit as multiples of it."""
    dims: dict[str, Any] = {}
    units: dict[str, Any] = {}
    for name, dim in sorted(graph.dims.items(), key=lambda item: item[1].per_unit):
        if dim.per_unit == 1:
            dims[name] = torch.export.Dim(name, min=dim.min, max=dim.max)
            units.setdefault(dim.unit, dims[name])
        else:
            low, high = dim.min // dim.per_unit, dim.max // dim.per_unit
            root = units.setdefault(dim.unit, torch.export.Dim(f"{dim.unit}_unit", min=low, max=high))
            dims[name] = dim.per_unit * root
    return dims


def _reason(error: Exception, graph: GraphSpec) -> str:
    text = str(error)
    fixed = [name for name in graph.dims if re.search(rf"\b{re.escape(name)}\b", text)]
    if fixed and ("onstraint" in text or "speciali" in text):
        axes = "; ".join(f"{_axis(graph, name)} cannot vary over the whole range" for name in fixed)
        return f"{axes} ({_hint(text)})"
    return f"torch.export cannot capture the module: {_first_line(text) or type(error).__name__}"


def _axis(graph: GraphSpec, name: str) -> str:
    dim = graph.dims[name]
    for spec in graph.inputs.tensors:
        for axis, size in enumerate(spec.shape):
            if isinstance(size, DynamicDim) and size.name == name:
                return f"{name} (axis {axis} of {path_text(spec.path)}, {dim.min} to {dim.max})"
    return name


def _hint(text: str) -> str:
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
