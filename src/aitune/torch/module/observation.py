"""What was seen of one graph while recording, and the graph that follows from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from aitune.torch.graph.dims import Size, infer_dims
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import (
    CallSpec,
    Constant,
    Leaf,
    Opaque,
    TensorSpec,
    Varying,
    constant_key,
    constant_or_opaque,
    is_plain_tensor,
)
from aitune.torch.graph.tree import Structure, flatten

__all__ = ["MAX_SHAPES", "Layout", "Observation"]

MAX_SHAPES = 4096
"""Distinct shapes kept for one graph; later ones only widen ranges. Bounds memory in a long recording."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """Structure and leaves of one side of a call, sizes left out of the identity.

    Attributes:
        structure: How the leaves are nested.
        leaves: One entry a leaf: its spec with the sizes of this call.
    """

    structure: Structure
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, value: Any) -> Layout:
        """Describe a nested value."""
        leaves, structure = flatten(value)
        return cls(structure, tuple(_leaf(path, leaf) for path, leaf in zip(structure.paths(), leaves, strict=True)))

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors among the leaves."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorSpec))

    @property
    def shapes(self) -> Shapes:
        """The sizes of each tensor in this call."""
        return tuple(leaf.shape for leaf in self.tensors)  # type: ignore[misc]

    def identity(self, *, constants: bool) -> Hashable:
        """Return what makes two calls calls of one graph.

        Args:
            constants: Whether leaves that are no tensors count by value, or by type only.
        """
        return self.structure, tuple(_mark(leaf, constants) for leaf in self.leaves)

    def spec(self, shapes: Sequence[tuple[Size, ...]], varying: Collection[int] = ()) -> CallSpec:
        """Return the spec with dimensions in place of this call's sizes, and leaves by index that vary."""
        supply = iter(shapes)
        leaves: list[Leaf] = []
        for index, leaf in enumerate(self.leaves):
            if isinstance(leaf, TensorSpec):
                leaves.append(TensorSpec(leaf.path, next(supply), leaf.dtype, leaf.device))
            elif index in varying:
                leaves.append(Varying(leaf.path, type(leaf.value), leaf.value))
            else:
                leaves.append(leaf)
        return CallSpec(self.structure, tuple(leaves))


class Observation:
    """Shapes and samples of one graph, while it is being recorded.

    Args:
        inputs: Layout of the first call.
        training: The module's training flag in that call.
        form: How that call was written.
        capacity: How many samples to keep.

    Attributes:
        outputs: Layout of the first call's outputs, None before it returned.
        unstable: Why outputs cannot be those of one engine, None while they can.
        mutates: Whether a call changed an input in place.
    """

    def __init__(self, inputs: Layout, training: bool, form: CallForm, capacity: int) -> None:
        self.inputs = inputs
        self.training = training
        self.form = form
        self.calls = 0
        self.outputs: Layout | None = None
        self.unstable: str | None = None
        self.mutates = False
        self._varying: set[int] = set()
        self._capacity = capacity
        self._seen: dict[tuple[Shapes, Shapes, int | None], None] = {}
        self._ranges: list[tuple[int, int]] = []
        self._samples: list[tuple[int, Shapes, Sample]] = []

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples kept, in order of size."""
        return tuple(sample for _, _, sample in self._samples)

    @property
    def input_shapes(self) -> tuple[Shapes, ...]:
        """The shapes of the input tensors of every call that counts, each once."""
        return tuple(dict.fromkeys(inputs for inputs, _, _ in self._seen))

    def wants(self, shapes: Shapes) -> bool:
        """Whether a call of these shapes would be kept as a sample: few were, or its size spreads them wider."""
        if any(math.prod(shape) == 0 for shape in shapes):
            return False  # an empty call is answered by the original, so there is nothing to check with it
        return len(self._samples) < self._capacity or self._victim(_volume(shapes), shapes) is not None

    def add(self, inputs: Layout, outputs: Layout, sample: Sample | None, batch_size: int | None) -> None:
        """Take one finished call.

        Args:
            inputs: Layout of its inputs.
            outputs: Layout of its outputs.
            sample: A copy of its inputs from before the call, None if :meth:`wants` declined.
            batch_size: Its batch size where known.
        """
        self.calls += 1
        self.note_values(inputs)
        if self.outputs is None:
            self.outputs = outputs
        elif self.unstable is None:
            self.unstable = _difference(self.outputs, outputs)
        if self.unstable is None:
            wider = self._widens(inputs.shapes + outputs.shapes)
            if wider or len(self._seen) < MAX_SHAPES:
                self._seen[inputs.shapes, outputs.shapes, batch_size] = None
        if sample is not None:
            self._keep(sample, inputs.shapes)

    def note_values(self, other: Layout) -> None:
        """Take note of which leaves that are no tensors differ from those of the first call."""
        for index, (one, two) in enumerate(zip(self.inputs.leaves, other.leaves, strict=True)):
            if isinstance(one, Constant) and isinstance(two, Constant) and not one.accepts(two.value):
                self._varying.add(index)

    def graph(self, name: str, signature: CallSignature) -> GraphSpec:
        """Return the graph: axes that varied become dimensions, with the ranges seen."""
        assert self.outputs is not None
        calls = [inputs + outputs for inputs, outputs, _ in self._seen]
        sizes = infer_dims(calls, [batch for _, _, batch in self._seen])
        split = len(self.inputs.tensors)
        return GraphSpec(
            name=name,
            signature=signature,
            inputs=self.inputs.spec(sizes[:split], self._varying),
            outputs=self.outputs.spec(sizes[split:]),
            training=self.training,
            mutates=self.mutates,
            form=signature.covering(self.form, {str(leaf.path[0]) for leaf in self.inputs.tensors}),
        )

    def _widens(self, shapes: Shapes) -> bool:
        """Take note of the sizes of a call; tell whether one was outside the range of all before."""
        sizes = [size for shape in shapes for size in shape]
        before = self._ranges or [(size, size) for size in sizes]
        self._ranges = [(min(low, size), max(high, size)) for (low, high), size in zip(before, sizes, strict=True)]
        return self._ranges != before

    def _keep(self, sample: Sample, shapes: Shapes) -> None:
        volume = _volume(shapes)
        if len(self._samples) >= self._capacity:
            victim = self._victim(volume, shapes)
            if victim is None:
                return
            del self._samples[victim]
        self._samples.append((volume, shapes, sample))
        self._samples.sort(key=lambda entry: entry[0])

    def _victim(self, volume: int, shapes: Shapes) -> int | None:
        """Return which sample to give up for a new one: the one whose neighbours are closest; None for the new one."""
        if any(shapes == kept for _, kept, _ in self._samples):
            return None
        entries = sorted([(entry[0], i) for i, entry in enumerate(self._samples)] + [(volume, -1)])
        known: dict[Shapes, int] = {}
        for i, entry in enumerate(self._samples):
            known.setdefault(entry[1], i)
        duplicates = [i for i, entry in enumerate(self._samples) if known[entry[1]] != i]
        if duplicates:
            return duplicates[-1]
        if len(entries) < 3:
            return None
        gaps = [(entries[k + 1][0] - entries[k - 1][0], entries[k][1]) for k in range(1, len(entries) - 1)]
        victim = min(gaps, key=lambda gap: (gap[0], gap[1] != -1))[1]
        return None if victim == -1 else victim


def _leaf(path: tuple[Any, ...], value: Any) -> Leaf:
    if is_plain_tensor(value):
        return TensorSpec(path, tuple(value.shape), value.dtype, value.device)
    return constant_or_opaque(path, value)


def _mark(leaf: Leaf, constants: bool) -> Hashable:
    if isinstance(leaf, TensorSpec):
        return len(leaf.shape), leaf.dtype, leaf.device
    if isinstance(leaf, Opaque):
        return leaf.kind
    return constant_key(leaf.value) if constants else (type(leaf.value),)


def _volume(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _difference(first: Layout, other: Layout) -> str | None:
    """Return why two outputs of one graph cannot be those of one engine, None if they can."""
    if first.structure != other.structure:
        return "its output is structured differently from call to call"
    for one, two in zip(first.leaves, other.leaves, strict=True):
        if isinstance(one, TensorSpec) and isinstance(two, TensorSpec):
            if (len(one.shape), one.dtype, one.device) != (len(two.shape), two.dtype, two.device):
                return f"output {one} becomes {two} from call to call"
        elif isinstance(one, TensorSpec) or isinstance(two, TensorSpec) or not one.accepts(two.value):
            return f"its output holds a value that is no tensor and changes from call to call ({two})"
    return None
