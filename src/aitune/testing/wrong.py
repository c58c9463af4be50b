"""Wrong engines, each in another way that real ones were: for tests of whatever has to find them.

Each function here returns a backend whose engines run the module's own forward, and then spoil it. They serve modules
with floating inputs and outputs and a leading batch axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from aitune.testing.backends import FunctionBackend, FunctionBackendConfig
from aitune.torch.graph.job import Job
from aitune.torch.graph.tree import flatten

__all__ = [
    "WRONG",
    "buffer_view",
    "changed_input",
    "in_between_size",
    "lower_precision",
    "nan_elsewhere",
    "one_in_twenty",
    "one_row",
    "other_dtype",
    "other_structure",
    "random_numbers",
    "requires_grad",
    "second_call",
    "stale_batch",
]

Spoil = Callable[[torch.Tensor], torch.Tensor]


def random_numbers() -> FunctionBackend:
    """Random numbers of the right shape."""
    return _spoiled("random numbers", torch.randn_like)


def one_row() -> FunctionBackend:
    """The last row of a batch is off by a tenth; a batch of one is right."""

    def spoil(y: torch.Tensor) -> torch.Tensor:
        if len(y) > 1:
            y[-1] *= 1.1
        return y

    return _spoiled("one row", spoil)


def stale_batch() -> FunctionBackend:
    """Every row is the answer to the first one, as in an engine that was built for a batch of one."""
    return _spoiled("stale batch", lambda y: y[:1].expand_as(y).clone())


def in_between_size() -> FunctionBackend:
    """Right at every batch size that was recorded, zeros at all others."""

    def make(job: Job) -> Callable[..., Any]:
        known = {len(tensor) for sample in job.samples for tensor in _tensors((sample.args, dict(sample.kwargs)))}
        return _spoiling(job, lambda y: y if len(y) in known else torch.zeros_like(y))

    return FunctionBackend(make, FunctionBackendConfig("in-between size"))


def second_call() -> FunctionBackend:
    """Every call adds a little to what the one before added, the first one nothing."""
    calls = itertools.count()
    return _spoiled("second call", lambda y: y * (1 + 0.01 * next(calls)))


def one_in_twenty() -> FunctionBackend:
    """One call of twenty is zeros: too seldom for a check of a few calls."""
    calls = itertools.count(1)
    return _spoiled("one in twenty", lambda y: torch.zeros_like(y) if next(calls) % 20 == 0 else y)


def buffer_view() -> FunctionBackend:
    """Outputs are views of memory that the next call writes to."""
    memory: dict[torch.dtype, torch.Tensor] = {}

    def spoil(y: torch.Tensor) -> torch.Tensor:
        buffer = memory.setdefault(y.dtype, torch.empty(1 << 16, dtype=y.dtype, device=y.device))
        return buffer[: y.numel()].view(y.shape).copy_(y)

    return _spoiled("buffer view", spoil)


def other_dtype() -> FunctionBackend:
    """The right values as float64."""
    return _spoiled("other dtype", torch.Tensor.double)


def other_structure() -> FunctionBackend:
    """The right output as the only item of a list."""

    def make(job: Job) -> Callable[..., Any]:
        return lambda *args, **kwargs: [job.forward(*args, **kwargs)]

    return FunctionBackend(make, FunctionBackendConfig("other structure"))


def nan_elsewhere() -> FunctionBackend:
    """One number of each output is not a number."""

    def spoil(y: torch.Tensor) -> torch.Tensor:
        y.view(-1)[-1:] = torch.nan
        return y

    return _spoiled("NaN elsewhere", spoil)


def lower_precision() -> FunctionBackend:
    """Outputs are rounded to bfloat16, float32 is declared."""
    return _spoiled("lower precision", lambda y: y.bfloat16().to(y.dtype))


def requires_grad() -> FunctionBackend:
    """Outputs ask for gradients that nobody asked for."""
    return _spoiled("requires grad", torch.Tensor.requires_grad_)


def changed_input() -> FunctionBackend:
    """The right output, and afterwards the input is another."""

    def make(job: Job) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            output = job.forward(*args, **kwargs)
            for tensor in _tensors((args, kwargs)):
                tensor.add_(1)
            return output

        return run

    return FunctionBackend(make, FunctionBackendConfig("changed input"))


WRONG: Mapping[str, Callable[[], FunctionBackend]] = MappingProxyType(
    {
        make.__name__: make
        for make in (
            random_numbers,
            one_row,
            stale_batch,
            in_between_size,
            second_call,
            one_in_twenty,
            buffer_view,
            other_dtype,
            other_structure,
            nan_elsewhere,
            lower_precision,
            requires_grad,
            changed_input,
        )
    }
)
"""Every function of this catalogue by its name."""


def _spoiled(label: str, spoil: Spoil) -> FunctionBackend:
    return FunctionBackend(lambda job: _spoiling(job, spoil), FunctionBackendConfig(label))


def _spoiling(job: Job, spoil: Spoil) -> Callable[..., Any]:
    """Return the module's forward with each floating output passed through a function that may write to it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten(job.forward(*args, **kwargs))
        return structure.unflatten([spoil(leaf.clone()) if _is_floating(leaf) else leaf for leaf in leaves])

    return run


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dim() > 0


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(value)[0] if _is_floating(leaf)]
