"""Why a call did not belong to any engine: the slow, plainly written twin of the generated check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.graph.dims import BatchDim, DynamicDim, Size
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.spec import TensorSpec, is_plain_tensor
from aitune.torch.graph.tree import path_text
from aitune.torch.module.route import HOOKS, Route, ambient, apart, global_hooks, plain_context

__all__ = ["Miss", "find_route", "has_hooks"]


@dataclass(frozen=True)
class Miss:
    """Why the original answered.

    Attributes:
        reason: One of a small set of words, for counting.
        detail: What exactly, and what would cover the call; for the log.
    """

    reason: str
    detail: str = ""


def find_route(module: torch.nn.Module, routes: Sequence[Route], args: Any, kwargs: Mapping[str, Any]) -> Route | Miss:
    """Decide as the generated check does, with a reason.

    Returns:
        The route that the call belongs to, or why it belongs to none. The reason is that of the graph which came
        closest.
    """
    miss = _module_miss(module, routes)
    if miss is not None:
        return miss
    misses: list[tuple[int, Miss]] = []
    for route in routes:
        found = _graph_miss(route, args, kwargs)
        if found is None:
            return route
        misses.append(found)
    return max(misses, key=lambda entry: entry[0])[1] if misses else Miss("no engine")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether the module or anything below it has a hook of its own."""
    return any(child.__dict__[name] for child in module.modules() for name in HOOKS)


def _module_miss(module: torch.nn.Module, routes: Sequence[Route]) -> Miss | None:  # noqa: PLR0911 - a table of reasons
    if not routes:
        return Miss("no engine")
    training = routes[0].graph.training
    if module.training is not training:
        return Miss("training flag", f"it was tuned with training={training}")
    if module.__dict__.get("forward") is not routes[0].forward:
        return Miss("forward replaced", "another forward was set on the instance")
    if has_hooks(module) or any(global_hooks()):
        return Miss("hooks", "hooks are registered on it, on a module below, or globally")
    for reason, holds in plain_context(training):
        if not holds():
            return Miss(reason)
    if ambient() != routes[0].ambient:
        return Miss("default dtype or function mode", "it was tuned under others, such as torch.set_default_dtype sets")
    watches = {id(route.watch): route.watch for route in routes if route.watch is not None}
    if any(watch.changed for watch in watches.values()):
        return Miss(
            "weights changed",
            "parameters or buffers are not those it was tuned with; retune() tunes anew, where that is for good",
        )
    return None


def _graph_miss(route: Route, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, Miss] | None:
    """Return how far the call came and why it is not one of the route's graph; None if it is."""
    graph = route.graph
    try:
        leaves = graph.input_leaves(args, kwargs)
    except TypeError as error:
        return 0, Miss("signature", str(error))
    if leaves is None:
        return 1, Miss("structure", "the arguments are nested in a way that was not recorded")
    for spec, leaf in zip(graph.inputs.leaves, leaves, strict=True):
        if isinstance(spec, TensorSpec):
            miss = _tensor_miss(spec, leaf, route.reads_memory)
            if miss is not None:
                return miss
        elif not spec.accepts(leaf):
            return 2, Miss("value", f"{path_text(spec.path)} has a value that was not recorded")
    tensors = graph.inputs.select_tensors(leaves)
    if graph.mutates and not apart(*tensors):
        return 5, Miss("aliased inputs", "forward changes its inputs in place, and two of them share memory")
    return next(_range_misses(graph, tensors), None)


def _tensor_miss(spec: TensorSpec, leaf: Any, reads_memory: bool) -> tuple[int, Miss] | None:  # noqa: PLR0911 - a table of reasons
    name = path_text(spec.path)
    if not is_plain_tensor(leaf):
        return 3, Miss("type", f"{name} is a {type(leaf).__name__}")
    if leaf.dtype is not spec.dtype:
        return 3, Miss("dtype", f"{name} is {leaf.dtype}, recorded was {spec.dtype}")
    if leaf.device != spec.device:
        return 3, Miss("device", f"{name} is on {leaf.device}, recorded was {spec.device}")
    if leaf.requires_grad and torch.is_grad_enabled():
        return 3, Miss("requires grad", f"{name} requires grad")
    if leaf.is_conj() or (reads_memory and leaf.is_neg()):
        return 3, Miss("conjugate view", f"{name} is a lazy conjugate, or a part of one")
    if leaf.dim() != len(spec.shape):
        return 4, Miss("rank", f"{name} has {leaf.dim()} axes, recorded were {len(spec.shape)}")
    return None


def _range_misses(graph: GraphSpec, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, Miss]]:
    for spec, tensor in zip(graph.inputs.tensors, tensors, strict=True):
        for axis, (size, seen) in enumerate(zip(spec.shape, tensor.shape, strict=True)):
            place, cover = f"axis {axis} of {path_text(spec.path)}", _cover(spec, axis, seen)
            if not isinstance(size, DynamicDim):
                if size != seen:
                    yield 5, Miss("range", f"{place} is {seen}, tuned for {size} alone; {cover}")
            elif not size.min <= seen <= size.max:
                yield 6, Miss("range", f"{place} is {seen}, tuned for {size.min} to {size.max}; {cover}")
    if graph.sizes(tensors) is None:
        shapes = ", ".join(
            f"{path_text(s.path)}{list(t.shape)}" for s, t in zip(graph.inputs.tensors, tensors, strict=True)
        )
        yield 7, Miss("range", f"axes that were always equal, or a fixed multiple of one size, are not: {shapes}")


def _cover(spec: TensorSpec, axis: int, seen: int) -> str:
    """Return what to pass so that a size is covered, as it would be written."""
    if seen == 0:
        return "empty tensors are always answered by the original"
    size = spec.shape[axis]
    low, high = (size.min, size.max) if isinstance(size, DynamicDim) else (size, size)
    low, high = min(low, seen), max(high, seen)
    kind = type(size).__name__ if isinstance(size, DynamicDim) else "DynamicDim"
    name = size.name if isinstance(size, DynamicDim) else f"size{axis}"
    wider = f"{kind}({name!r}, {low}, {high})"
    sizes = [wider if index == axis else _written(one) for index, one in enumerate(spec.shape)]
    key = spec.path[0] if len(spec.path) == 1 else spec.path
    declared = f"dynamic_shapes={{{key!r}: ({', '.join(sizes)},)}}"
    if isinstance(size, BatchDim):
        return f"batch_sizes=[{max(1, low // size.per_unit)}, {-(-high // size.per_unit)}] or {declared} would cover it"
    return f"samples of that size or {declared} would cover it"


def _written(size: Size) -> str:
    return (
        f"{type(size).__name__}({size.name!r}, {size.min}, {size.max})" if isinstance(size, DynamicDim) else str(size)
    )
