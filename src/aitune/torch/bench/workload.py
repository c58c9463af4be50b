"""The workload: the calls with which speed is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample

__all__ = ["Workload", "sizes_seen"]


@dataclass(frozen=True)
class Workload:
    """Calls of one graph, each made once a pass.

    Attributes:
        samples: The calls, with tensors of their own.
        batch_size: Batch size of each, None for a graph without a batch axis.
    """

    samples: tuple[Sample, ...]
    batch_size: int | None

    @classmethod
    def at(cls, graph: GraphSpec, samples: Sequence[Sample], batch_size: int | None) -> Workload:
        """Make the workload of one batch size out of recorded samples.

        Samples of other batch sizes are brought to this one; those that become equal in every size are taken once.

        Args:
            graph: The graph.
            samples: Recorded calls, at least one.
            batch_size: Size of the batch dimension; None takes the samples as they are.
        """
        if batch_size is None or graph.batch_dim is None:
            return cls(tuple(sample.fresh() for sample in samples), None)
        name = graph.batch_dim.name
        distinct: dict[tuple[Any, ...], Sample] = {}
        for sample in samples:
            resized = graph.resized(sample, {name: batch_size})
            tensors = graph.input_tensors(resized.args, resized.kwargs)
            distinct.setdefault(tuple(tensor.shape for tensor in tensors), resized)
        return cls(tuple(distinct.values()), batch_size)

    def within(self, graph: GraphSpec, ranges: Mapping[str, tuple[int, int]]) -> Workload:
        """Return the calls whose sizes lie within smaller ranges; there may be none."""
        if not ranges:
            return self
        return Workload(tuple(one for one in self.samples if graph.lies_within(one, ranges)), self.batch_size)

    def passes(self, call: Callable[..., Any]) -> Callable[[], list[Any]]:
        """Return a function that makes every call once, through ``call``, and returns the outputs in order.

        Inputs are copies: a module that changes them changes none that a later comparison begins from.
        """
        calls = [(sample.args, dict(sample.kwargs)) for sample in (one.fresh() for one in self.samples)]

        def one_pass() -> list[Any]:
            return [call(*args, **kwargs) for args, kwargs in calls]

        return one_pass

    def throughput(self, seconds: float) -> float:
        """Return batch entries a second (calls a second without a batch axis), for ``seconds`` a pass."""
        return len(self.samples) * (self.batch_size or 1) / max(seconds, 1e-12)

    def latency(self, seconds: float) -> float:
        """Return seconds a call, for ``seconds`` a pass."""
        return seconds / len(self.samples)


def sizes_seen(graph: GraphSpec, samples: Sequence[Sample]) -> list[int]:
    """Return the sizes of the batch dimension in the samples, ascending; empty for a graph without one."""
    batch = graph.batch_dim
    if batch is None:
        return []
    sizes = [graph.sizes(graph.input_tensors(sample.args, sample.kwargs)) for sample in samples]
    return sorted({found[batch.name] for found in sizes if found is not None})
