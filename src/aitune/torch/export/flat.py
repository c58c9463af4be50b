"""A module's forward with tensors in and tensors out, as exporters want it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample

__all__ = [
    "FlatForward",
    "OutputRoutes",
    "flat_call",
    "flat_inputs",
    "input_name",
    "inputs_to_aim_at",
    "output_name",
]


@dataclass(frozen=True)
class OutputRoutes:
    """Where each output tensor of a graph comes from, once what needs no computing is left out of the export.

    A forward may return one tensor twice, or an input as it is. Runtimes disagree about graphs with such
    outputs, so the exported graph has each computed tensor once, and the call puts the others in their
    places.

    Attributes:
        sources: For each output of the graph the kind (``"computed"`` or ``"input"``) and an index: among the
            outputs of the exported graph, or among the graph's input tensors.
    """

    sources: tuple[tuple[str, int], ...]

    @property
    def computed(self) -> int:
        """How many outputs the exported graph has."""
        return len({index for kind, index in self.sources if kind == "computed"})

    @property
    def direct(self) -> bool:
        """Whether the outputs of the exported graph are those of the graph, in order."""
        return self.sources == tuple(("computed", i) for i in range(len(self.sources)))

    def outputs(self, computed: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the graph's output tensors.

        Args:
            computed: What the exported graph returned.
            inputs: The input tensors of the same call.
        """
        return [computed[index] if kind == "computed" else inputs[index] for kind, index in self.sources]


class FlatForward(torch.nn.Module):
    """The forward of a job's module for one graph: ``tensors -> tensors``, each computed tensor once.

    Holds the user's module as a child, so that exporters find its parameters, and changes nothing of it: no
    flag, no hook, no attribute. Must not be put into another mode (``train``, ``eval``, ``to``): that would
    reach the user's module.

    Args:
        job: What to serve.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.module = job.module
        self.training = job.module.training
        self._original = job.forward
        self._graph = job.graph
        self._note = _Note()

    @property
    def routes(self) -> OutputRoutes:
        """Where the outputs of the last run come from; there are none before the first run."""
        return self._note.routes

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the original forward on a call made of ``tensors``, in the order of the graph's inputs."""
        args, kwargs = self._graph.call(tensors)
        outputs = self._graph.output_tensors(self._original(*args, **kwargs))
        computed: list[torch.Tensor] = []
        places = {id(tensor): ("input", i) for i, tensor in enumerate(tensors)}
        sources = []
        for output in outputs:
            if id(output) not in places:
                places[id(output)] = ("computed", len(computed))
                computed.append(output)
            sources.append(places[id(output)])
        self._note.routes = OutputRoutes(tuple(sources))
        return tuple(computed)


class _Note:
    """Holds what a run found out; torch.export undoes what is written to a module, lists included."""

    routes = OutputRoutes(())


def flat_inputs(job: Job) -> tuple[torch.Tensor, ...]:
    """Return inputs to export with: a copy of a call in which every dynamic axis has at least 2 entries.

    Exporters take a size of 1 for a constant. A recorded call is preferred to a resized one, since sizes may
    depend on each other.
    """
    graph = job.graph
    calls = [graph.input_tensors(sample.args, sample.kwargs) for sample in job.samples]
    large = [tensors for tensors in calls if min((graph.sizes(tensors) or {"": 2}).values()) >= 2]
    if large:
        tensors = min(large, key=lambda call: sum(tensor.numel() for tensor in call))
        return tuple(_copy(tensor) for tensor in tensors)
    seen = graph.sizes(calls[0]) or {}
    resized = graph.resized(job.samples[0], {name: 2 for name, size in seen.items() if size < 2})
    return tuple(_copy(tensor) for tensor in graph.input_tensors(resized.args, resized.kwargs))


def flat_call(job: Job, sample: Sample) -> tuple[torch.Tensor, ...]:
    """Return copies of the tensors of a recorded call, in the order of the graph's inputs."""
    return tuple(_copy(tensor) for tensor in job.graph.input_tensors(sample.args, sample.kwargs))


def inputs_to_aim_at(job: Job) -> tuple[torch.Tensor, ...]:
    """Return inputs of the size that matters most: the largest recorded call, brought to the batch size to aim at."""
    graph = job.graph

    def extent(sample: Sample) -> int:
        return sum(tensor.numel() for tensor in graph.input_tensors(sample.args, sample.kwargs))

    sample, batch = max(job.samples, key=extent), graph.batch_dim
    if batch is not None:
        sample = graph.resized(sample, {batch.name: batch.opt or batch.max})
    return tuple(_copy(tensor) for tensor in graph.input_tensors(sample.args, sample.kwargs))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def input_name(index: int) -> str:
    """Return the name of an input tensor in an exported graph."""
    return f"input{index}"


def output_name(index: int) -> str:
    """Return the name of a computed output in an exported graph."""
    return f"output{index}"
