"""Which graphs a module has, and which strategy tunes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.config import config
from aitune.torch.graph.dims import Size
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.spec import CallSpec, TensorSpec
from aitune.torch.graph.tree import Path, flatten
from aitune.torch.module.declared import apply_declared, check_known
from aitune.torch.module.observation import Observation
from aitune.torch.module.recording import Recording
from aitune.torch.tune_strategy import MaxThroughputStrategy, TuneStrategy

__all__ = ["Entry", "Plan", "Strategies", "plan_graphs"]

Strategies = Sequence[TuneStrategy] | Mapping[str, TuneStrategy]


@dataclass(frozen=True)
class Plan:
    """The strategy of every graph.

    Attributes:
        strategy: For every graph that ``strategies`` does not name.
        strategies: By position, or by graph name.
    """

    strategy: TuneStrategy | None = None
    strategies: Strategies | None = None

    @classmethod
    def checked(cls, strategy: Any, strategies: Any) -> Plan:
        """Make a plan out of what a user passed.

        Raises:
            AITuneUserInputError: If both are given, or something is no strategy.
        """
        if strategy is not None and strategies is not None:
            raise AITuneUserInputError("pass strategy= for all graphs or strategies= for each, not both")
        if isinstance(strategies, (str, bytes)) or not isinstance(strategies, (Sequence, Mapping, type(None))):
            raise AITuneUserInputError(f"strategies must be a list, or a dict by graph name, not {strategies!r}")
        values = strategies.values() if isinstance(strategies, Mapping) else strategies or ()
        for one in (*values, *(() if strategy is None else (strategy,))):
            if not isinstance(one, TuneStrategy):
                raise AITuneUserInputError(f"a strategy is needed, such as ait.MaxThroughputStrategy(), not {one!r}")
        return cls(strategy, strategies)

    def strategy_for(self, index: int, name: str) -> TuneStrategy:
        """Return the strategy of one graph; the default where the plan names none."""
        if isinstance(self.strategies, Mapping):
            return self.strategies.get(name) or MaxThroughputStrategy()
        if self.strategies is not None:
            return self.strategies[index] if index < len(self.strategies) else MaxThroughputStrategy()
        return self.strategy or MaxThroughputStrategy()

    def unknown(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the keys of ``strategies`` that are the name of no graph."""
        return tuple(key for key in self.strategies if key not in names) if isinstance(self.strategies, Mapping) else ()

    def arguments(self) -> dict[str, Any]:
        """Return the plan as arguments of ``ait.Module``."""
        return {"strategy": self.strategy, "strategies": self.strategies}

    def describe(self) -> str:
        """Return the plan in one line."""
        if self.strategies is None:
            return (self.strategy or MaxThroughputStrategy()).describe()
        items = self.strategies.items() if isinstance(self.strategies, Mapping) else enumerate(self.strategies)
        return ", ".join(f"{key}: {strategy.describe()}" for key, strategy in items)


@dataclass(frozen=True)
class Entry:
    """One graph to tune.

    Attributes:
        graph: The graph, declared dimensions in place.
        samples: Its recorded calls.
        problem: Why it cannot be tuned, None if it can.
    """

    graph: GraphSpec
    samples: tuple[Sample, ...]
    problem: str | None = None


def plan_graphs(
    module: str,
    recording: Recording | None,
    declared: Mapping[Path, tuple[Size, ...]],
    device: Any = None,
) -> tuple[Entry, ...]:
    """Return the graphs of a recording in order of appearance.

    Args:
        module: The module's name, for messages.
        recording: What was recorded; None gives no graphs.
        declared: Declared sizes by path.
        device: Where graphs and samples are moved; None leaves them where they were recorded.

    Raises:
        AITuneUserInputError: If a declaration contradicts what was recorded.
    """
    if recording is None:
        return ()
    seen_graphs = [
        (seen, seen.graph(f"graph{number}", recording.signature)) for number, seen in enumerate(recording.observations)
    ]
    check_known(module, [graph for _, graph in seen_graphs], declared)
    entries = []
    for seen, recorded in seen_graphs:
        graph = apply_declared(module, recorded, declared, seen.input_shapes)
        entry = Entry(graph, seen.samples, _problem(graph, seen))
        entries.append(entry if device is None else _moved(entry, torch.device(device)))
    return tuple(entries)


def _problem(graph: GraphSpec, seen: Observation) -> str | None:
    if seen.unstable is not None:
        return seen.unstable
    opaque = (*graph.inputs.opaque, *graph.outputs.opaque)
    if opaque:
        return f"{opaque[0]} is neither a tensor nor a plain value, nor a container of them"
    if not graph.inputs.tensors and not graph.outputs.tensors:
        return "no tensor goes in or comes out"
    if not seen.samples:
        return "every recorded call had an empty tensor"
    if seen.calls < config.min_num_samples:
        return f"{seen.calls} calls were recorded, config.min_num_samples asks for {config.min_num_samples}"
    return None


def _moved(entry: Entry, device: torch.device) -> Entry:
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    graph = replace(
        entry.graph, inputs=_placed(entry.graph.inputs, device), outputs=_placed(entry.graph.outputs, device)
    )
    return Entry(graph, tuple(_sample_on(sample, device) for sample in entry.samples), entry.problem)


def _placed(spec: CallSpec, device: torch.device) -> CallSpec:
    leaves = tuple(replace(leaf, device=device) if isinstance(leaf, TensorSpec) else leaf for leaf in spec.leaves)
    return CallSpec(spec.structure, leaves)


def _sample_on(sample: Sample, device: torch.device) -> Sample:
    leaves, structure = flatten((sample.args, dict(sample.kwargs)))
    args, kwargs = structure.unflatten([leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
    return Sample(args, kwargs, sample.batch_size)
