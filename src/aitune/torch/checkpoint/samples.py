"""Inputs made up from a graph alone: a checkpoint holds no sample of anybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aitune.torch.check.trace import no_trace
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.spec import TensorSpec

__all__ = ["made_up_samples"]

_WAYS = ("random", "ones", "zeros")


def made_up_samples(
    module: torch.nn.Module, forward: Callable[..., Any], graph: GraphSpec, seed: int = 0
) -> tuple[Sample, ...]:
    """Make inputs that the module takes: at the smallest sizes, and at the smallest above one.

    Floating numbers are normal, integers 0 and 1, flags true; where the module raises on those, everything is one, then
    zero. The module is called, and left as it was.

    Args:
        module: The module.
        forward: Its original forward.
        graph: The graph.
        seed: Seeds the numbers; no global generator is touched.

    Returns:
        Samples; empty where the module takes nothing of the kind.
    """
    least = {dim.name: dim.min for dim in graph.dims.values()}
    above = {dim.name: min(dim.max, max(dim.min, 2)) for dim in graph.dims.values()}
    for way in _WAYS:
        samples = [_made(graph, sizes, way, seed) for sizes in ((least, above) if least != above else (least,))]
        if all(_runs(module, forward, sample) for sample in samples):
            return tuple(samples)
    return ()


def _made(graph: GraphSpec, sizes: dict[str, int], way: str, seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    tensors = [_tensor(spec, sizes, way, generator) for spec in graph.inputs.tensors]
    args, kwargs = graph.call(tensors)
    return Sample(args, kwargs, sizes.get(graph.batch_dim.name) if graph.batch_dim is not None else None)


def _tensor(spec: TensorSpec, sizes: dict[str, int], way: str, generator: torch.Generator) -> torch.Tensor:
    shape = [sizes[size.name] if isinstance(size, DynamicDim) else size for size in spec.shape]
    if way == "random" and (spec.dtype.is_floating_point or spec.dtype.is_complex):
        values = torch.randn(shape, generator=generator)
    elif way == "random" and spec.dtype is not torch.bool:
        values = torch.randint(0, 2, shape, generator=generator)
    else:
        values = torch.zeros(shape) if way == "zeros" else torch.ones(shape)
    return values.to(spec.dtype).to(spec.device)


def _runs(module: torch.nn.Module, forward: Callable[..., Any], sample: Sample) -> bool:
    fresh = sample.fresh()
    try:
        with no_trace(module):
            forward(*fresh.args, **fresh.kwargs)
    except Exception:  # noqa: BLE001 - the user's forward, on inputs that mean nothing to it
        return False
    return True
