"""What one call did: what it returned, which inputs it changed, and what it changed in the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.torch.check.ambient import Ambient
from aitune.torch.check.bits import copy_of, same_bits, storage_key
from aitune.torch.check.facts import Facts
from aitune.torch.check.inputs import Probe
from aitune.torch.check.manner import Manner, in_another_thread, other_contents
from aitune.torch.check.rng import RngState
from aitune.torch.check.sharing import meeting
from aitune.torch.check.state import REMOVED, Snapshot
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.spec import same_constant
from aitune.torch.graph.tree import Structure, flatten, path_text

__all__ = ["Outcome", "perform"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything that can be seen of one call.

    Attributes:
        structure: How the output is nested.
        leaves: Leaves of the output.
        facts: For each leaf that is a tensor its properties, else None.
        inputs: Inputs that are no longer what was passed, by path, as they are now.
        state: What is different in the module, by path, as it is now.
        shared: Pairs of things that share memory and include an output, in words.
        settings: Settings of the process that the call left changed.
        rng: Random number generators after the call.
        drew: Whether they, or generators that the module owns, moved.
    """

    structure: Structure
    leaves: tuple[Any, ...]
    facts: tuple[Facts | None, ...]
    inputs: Mapping[str, Any]
    state: Mapping[str, Any]
    shared: frozenset[str]
    settings: tuple[str, ...]
    rng: RngState
    drew: bool

    @classmethod
    def of_output(cls, value: Any) -> Outcome:
        """Return the outcome of a call of which nothing but what it returned was looked at."""
        leaves, structure = flatten(value)
        return cls(
            structure=structure,
            leaves=tuple(leaves),
            facts=_facts(leaves),
            inputs={},
            state={},
            shared=frozenset(),
            settings=(),
            rng=RngState.capture(),
            drew=False,
        )

    @property
    def outputs(self) -> dict[str, Any]:
        """Leaves of the output by name, such as ``output['logits'][0]``."""
        names = (path_text(("output", *path)) for path in self.structure.paths())
        return dict(zip(names, self.leaves, strict=True))

    @property
    def everything(self) -> dict[str, Any]:
        """Every value that can be compared by name: outputs, changed inputs, what changed in the module."""
        return (
            self.outputs
            | {f"the input {path} after the call": value for path, value in self.inputs.items()}
            | {f"the module's {path} after the call": value for path, value in self.state.items()}
        )

    def with_output(self, value: Any) -> Outcome:
        """Return an outcome that returned ``value`` and did everything else as this one did."""
        leaves, structure = flatten(value)
        return replace(self, structure=structure, leaves=tuple(leaves), facts=_facts(leaves), shared=frozenset())

    def same_output(self, other: Outcome) -> bool:
        """Whether both returned the same, bit by bit."""
        return (
            self.structure == other.structure
            and self.facts == other.facts
            and all(_same(a, b) for a, b in zip(self.leaves, other.leaves, strict=True))
        )

    def kept(self) -> Outcome:
        """Return the same with tensors of its own, that nothing else writes to."""
        return self.converted(copy_of)

    def converted(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> Outcome:
        """Return the same with every tensor replaced by ``convert`` of it."""

        def one(value: Any) -> Any:
            return convert(value) if isinstance(value, torch.Tensor) else value

        return replace(
            self,
            leaves=tuple(one(leaf) for leaf in self.leaves),
            inputs={path: one(value) for path, value in self.inputs.items()},
            state={path: one(value) for path, value in self.state.items()},
        )


def perform(call: Callable[..., Any], probe: Probe, before: Snapshot) -> Outcome:
    """Call with a copy of a probe's inputs and see what happens.

    Settings of the process that the call leaves changed are put back; the module and the random numbers stay
    as the call left them.

    Args:
        call: What to call.
        probe: Inputs; not modified.
        before: State of the module that changes are told against.

    Raises:
        Exception: Whatever the call raises, with the settings of the process put back.
    """
    if probe.manner is Manner.THREAD:
        return in_another_thread(lambda: _perform(call, probe, before))
    return _perform(call, probe, before)


def _perform(call: Callable[..., Any], probe: Probe, before: Snapshot) -> Outcome:
    with probe.manner.mode():
        fresh = probe.manner.laid(probe.sample.fresh())
        named = probe.signature.bind(fresh.args, fresh.kwargs)
        ambient, rng = Ambient.capture(), RngState.capture()
        try:
            if probe.manner is Manner.REFILLED:
                _call_with_others(call, fresh)
            value = call(*fresh.args, **fresh.kwargs)
        finally:
            settings = tuple(ambient.changed())
            ambient.restore()
    after = RngState.capture()
    leaves, structure = flatten(value)
    if probe.manner is not Manner.PLAIN:  # whether outputs take part in autograd is torch's affair there
        leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    inputs = _by_path(named)
    return Outcome(
        structure=structure,
        leaves=tuple(leaves),
        facts=tuple(fact and replace(fact, inference=False) for fact in _facts(leaves))
        if probe.manner is Manner.INFERENCE
        else _facts(leaves),
        inputs=_changed(_by_path(probe.signature.bind(probe.sample.args, probe.sample.kwargs)), inputs),
        state=before.changes(),
        shared=frozenset(_shared(leaves, structure, inputs, before)),
        settings=settings,
        rng=after,
        drew=not after.same(rng) or bool(before.drawn()),
    )


def _call_with_others(call: Callable[..., Any], sample: Sample) -> None:
    """Call with other contents in the very tensors of a sample, and put its own back as nobody can see."""
    tensors = [leaf for leaf in flatten((sample.args, dict(sample.kwargs)))[0] if isinstance(leaf, torch.Tensor)]
    kept = [tensor.clone() for tensor in tensors]
    for tensor, own in zip(tensors, kept, strict=True):
        tensor.copy_(other_contents(own))
    call(*sample.args, **sample.kwargs)
    for tensor, own in zip(tensors, kept, strict=True):
        tensor.data.copy_(own)  # as numpy does to memory that it shares: the version counter stands still


def _facts(leaves: list[Any]) -> tuple[Facts | None, ...]:
    return tuple(Facts.of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)


def _by_path(value: Any) -> dict[str, Any]:
    leaves, structure = flatten(value)
    return {path_text(path): leaf for path, leaf in zip(structure.paths(), leaves, strict=True)}


def _changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    gone = {path: REMOVED for path in old if path not in new}
    return gone | {path: value for path, value in new.items() if not _same(value, old.get(path, REMOVED))}


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return same_bits(first, second)
    return first is second or (isinstance(first, (float, int, str)) and same_constant(first, second))


def _shared(leaves: list[Any], structure: Structure, inputs: dict[str, Any], before: Snapshot) -> Iterator[str]:
    """Yield what shares memory with an output that is a tensor."""
    names = [path_text(("output", *path)) for path in structure.paths()]
    tensors = [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor)]
    passed = [(f"the input {path}", leaf) for path, leaf in inputs.items() if isinstance(leaf, torch.Tensor)]
    outputs = {name for name, _ in tensors}
    for first, second in meeting([*tensors, *passed]):
        if first in outputs:
            yield f"{first} and {second}"
    held = before.storages()
    for name, tensor in tensors:
        key = storage_key(tensor)
        if key in held:
            yield f"{name} and the module's {held[key]}"
