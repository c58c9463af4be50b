"""The precision that an engine computes in, from the dtypes of what it computes with."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from aitune.torch.graph.job import Job
from aitune.torch.trial import PRECISIONS, Precision

__all__ = ["lowest", "module_precision", "precision_of"]

_OF_DTYPE: dict[torch.dtype, Precision] = {
    torch.float64: "float64",
    torch.complex128: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


def precision_of(dtype: torch.dtype) -> Precision:
    """Return the precision of arithmetic in a dtype; integers take part in float32 arithmetic."""
    return _OF_DTYPE.get(dtype, "float32")


def lowest(precisions: Iterable[Precision]) -> Precision:
    """Return the coarsest of several precisions, float32 for none."""
    return max(precisions, key=PRECISIONS.index, default="float32")


def module_precision(job: Job) -> Precision:
    """Return the coarsest precision among a module's state, inputs and outputs, those of floating point."""
    state = [*job.module.parameters(), *job.module.buffers()]
    specs = (*job.graph.inputs.tensors, *job.graph.outputs.tensors)
    dtypes = {tensor.dtype for tensor in state} | {spec.dtype for spec in specs}
    return lowest(precision_of(dtype) for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
