"""Which inputs a candidate is asked about: samples, ends of dimensions, sizes in between, variations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from aitune.torch.check.free_memory import free_bytes
from aitune.torch.check.manner import Manner, other_contents
from aitune.torch.check.sizes import further_sizes, wanted_sizes
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.tree import flatten, path_text

__all__ = ["Probe", "sample_probes", "synthesised_probes", "twin"]

# Inputs of a synthesised size may take this share of the free memory: what a module makes of them is far
# larger.
_SHARE_OF_MEMORY = 1 / 32


@dataclass(frozen=True, eq=False)
class Probe:
    """Inputs that a candidate is asked about.

    Attributes:
        label: Where they come from, such as ``sample 0`` or ``batch0=3``.
        sample: The inputs.
        signature: The forward's parameters.
        recorded: Whether they are a user's own; others are left out where eager itself cannot run them.
        spare: Whether they are left out where the module takes long.
        refusable: Whether a candidate may raise: the call is written in a form that no sample has, and the original
            answers it.
        manner: In which manner the call is made.
    """

    label: str
    sample: Sample
    signature: CallSignature
    recorded: bool = False
    spare: bool = False
    refusable: bool = False
    manner: Manner = Manner.PLAIN

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors among the inputs by path."""
        leaves, structure = flatten(self.signature.bind(self.sample.args, self.sample.kwargs))
        named = zip(structure.paths(), leaves, strict=True)
        return {path_text(path): leaf for path, leaf in named if isinstance(leaf, torch.Tensor)}

    @property
    def sizes(self) -> str:
        """Shapes of the tensors, as ``x[4, 16], mask[4]``, at most four of them."""
        shapes = [f"{path}{list(tensor.shape)}" for path, tensor in self.tensors.items()]
        return ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "") or "no tensors"


def sample_probes(graph: GraphSpec, samples: Sequence[Sample]) -> list[Probe]:
    """Return a probe for every recorded sample."""
    return [Probe(f"sample {i}", sample, graph.signature, recorded=True) for i, sample in enumerate(samples)]


def synthesised_probes(graph: GraphSpec, samples: Sequence[Sample], seed: int = 0) -> tuple[list[Probe], list[str]]:
    """Make inputs of sizes that no sample has, and the first sample with another layout and other contents.

    Sizes are all dimensions at their smallest, at their largest, in between; then each dimension alone, the
    others as in the first sample. At most 16 sizes, and two further ones that are spare.

    Args:
        graph: The graph.
        samples: Recorded calls of it.
        seed: Chooses which rows of a sample make up a batch of another size.

    Returns:
        The probes, and notes about sizes that were left out.
    """
    probes: list[Probe] = []
    spare: list[Probe] = []
    notes: list[str] = []
    first = samples[0]
    known = [(sample, sizes) for sample in samples if (sizes := _sizes_of(graph, sample))]
    seen = [sizes for _, sizes in known]
    wanted = wanted_sizes(graph.dims, seen) if known else []
    further = further_sizes(graph.dims, seen, wanted) if known else []
    for sizes in wanted + further:
        label = ", ".join(f"{name}={size}" for name, size in sizes.items())
        device = graph.inputs.tensors[0].device
        if _bytes_at(graph, sizes) > free_bytes(device) * _SHARE_OF_MEMORY:
            notes.append(f"not checked at {label}: a call of that size may not fit in memory")
            continue
        nearest = min(known, key=lambda entry: _distance(entry[1], sizes))[0]
        probe = Probe(label, graph.resized(nearest, sizes, seed), graph.signature, spare=sizes in further)
        (spare if probe.spare else probes).append(probe)
    strided = next((turned for sample in samples if (turned := _strided(graph, sample)) is not None), None)
    if strided is not None:
        probes.append(Probe("a sample in another memory layout", strided, graph.signature))
    probes.append(Probe("sample 0 with other contents", twin(graph, first), graph.signature))
    return probes + spare, notes


def twin(graph: GraphSpec, sample: Sample) -> Sample:
    """Return inputs of the same sizes with other contents, see :func:`~aitune.torch.check.manner.other_contents`."""
    args, kwargs = graph.call([other_contents(t) for t in graph.input_tensors(sample.args, sample.kwargs)])
    return Sample(args, kwargs, sample.batch_size)


def _strided(graph: GraphSpec, sample: Sample) -> Sample | None:
    """Return the sample with its axes reversed in memory, None where no tensor has two axes to exchange."""
    tensors = graph.input_tensors(sample.args, sample.kwargs)
    turned = []
    for tensor in tensors:
        axes = tuple(reversed(range(tensor.dim())))
        turned.append(tensor.detach().permute(axes).contiguous().permute(axes).clone())
    if all(a.stride() == b.stride() or b.is_contiguous() for a, b in zip(tensors, turned, strict=True)):
        return None
    args, kwargs = graph.call(turned)
    return Sample(args, kwargs, sample.batch_size)


def _sizes_of(graph: GraphSpec, sample: Sample) -> dict[str, int] | None:
    return graph.sizes(graph.input_tensors(sample.args, sample.kwargs)) if graph.dims else None


def _bytes_at(graph: GraphSpec, sizes: Mapping[str, int]) -> int:
    return sum(
        math.prod(sizes[size.name] if isinstance(size, DynamicDim) else size for size in spec.shape)
        * spec.dtype.itemsize
        for spec in graph.inputs.tensors
    )


def _distance(sizes: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    return sum(abs(math.log(max(sizes[name], 1) / size)) for name, size in wanted.items())
