"""A case: a module with calls of it at any batch size, the unit in which a contract suite asks."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aitune.testing import modules
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.tree import flatten
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.slot import Slot, current

__all__ = ["Case", "odd_cases", "standard_cases"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A module and how it is called.

    Attributes:
        name: For the names of tests.
        module: Makes the module; it is seeded, and set to eval mode, by :meth:`job`.
        inputs: Makes positional and keyword arguments of a batch size, from a generator and nothing else.
        batches: Batch sizes of the recorded calls.
    """

    name: str
    module: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Call]
    batches: tuple[int, ...] = (1, 4)

    def call(self, batch: int, variant: int = 0, device: str = "cpu") -> Sample:
        """Return a call with tensors of its own; equal arguments give equal values in every process."""
        seed = zlib.crc32(f"{self.name} {batch} {variant}".encode())
        args, kwargs = self.inputs(batch, torch.Generator().manual_seed(seed))
        leaves, structure = flatten((args, kwargs))
        args, kwargs = structure.unflatten([one.to(device) if isinstance(one, torch.Tensor) else one for one in leaves])
        return Sample(args, kwargs, batch)

    def job(self, folder: Path, device: str = "cpu") -> Job:
        """Make the module, record its calls, and return what a backend needs to build for them.

        Args:
            folder: Takes the folder and the log of the build.
            device: Where the module is.

        Raises:
            ValueError: If the recorded calls are not all of one graph.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            module = self.module().eval().to(device)
        recording = Recording(CallSignature.of(module.forward))
        slot = Slot(module, current(module))
        slot.install(functools.partial(recording.call, slot))
        try:
            with torch.no_grad():
                for batch in self.batches:
                    sample = self.call(batch, device=device)
                    with batch_of(batch):
                        module(*sample.args, **sample.kwargs)
        finally:
            slot.remove()
        seen = recording.observations
        if len(seen) != 1:
            raise ValueError(f"the calls of case {self.name!r} make up {len(seen)} graphs, they must be of one")
        graph = seen[0].graph("graph0", recording.signature)
        kind = next((one.device for one in graph.inputs.tensors), torch.device(device))
        return Job(self.name, module, graph, seen[0].samples, kind, folder / "files", folder / "build.log")


def standard_cases() -> Sequence[Case]:
    """Return the cases that every backend is asked about: together they have what calls are made of."""
    return (
        Case("mlp", modules.Mlp, lambda batch, random: ((_normal(random, batch, 8),), {})),
        Case("conv", modules.ConvNet, lambda batch, random: ((_normal(random, batch, 3, 12, 12),), {})),
        Case("nested", modules.Nested, _nested_inputs),
        Case("keywords", modules.Keywords, _keyword_inputs),
        Case("discrete", modules.Discrete, lambda batch, random: ((_integers(random, batch, 6),), {})),
        Case("scalars", modules.Scalars, lambda batch, random: ((_normal(random, batch, 3), _normal(random)), {})),
    )


def odd_cases() -> Sequence[Case]:
    """Return cases that a backend may well refuse; what it must not do is to bring the process down."""

    def rows(batch: int, random: torch.Generator) -> Call:
        return (_normal(random, batch, 8),), {}

    return (
        Case("branching", modules.Branching, rows),
        Case("spectrum", modules.Spectrum, rows),
        Case("ragged", modules.Ragged, rows),
    )


def _normal(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=random)


def _integers(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(0, 12, shape, generator=random)


def _nested_inputs(batch: int, random: torch.Generator) -> Call:
    pair = _normal(random, batch, 6), _normal(random, batch, 6)
    return (pair, {"mask": _normal(random, batch, 6) > 0, "shift": _normal(random, batch, 1)}), {}


def _keyword_inputs(batch: int, random: torch.Generator) -> Call:
    return (_normal(random, batch, 5),), {"bias": _normal(random, 5), "flip": True}
