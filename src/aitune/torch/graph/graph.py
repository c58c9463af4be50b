"""A graph: one way in which a module is called, with the ranges that its dimensions may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.torch.graph.dims import BatchDim, DynamicDim, Size
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec
from aitune.torch.graph.tree import flatten

__all__ = ["GraphSpec"]


@dataclass(frozen=True)
class GraphSpec:
    """Inputs, outputs and dimensions of one execution graph of a module.

    Attributes:
        name: Such as ``graph0``; unique within its module.
        signature: The forward's parameters.
        inputs: Structure is a dict of parameter name to value.
        outputs: Structure is what forward returns.
        training: The module's training flag when it was recorded.
        form: How calls that are made up are written: as the first recorded one was.
    """

    name: str
    signature: CallSignature
    inputs: CallSpec
    outputs: CallSpec
    training: bool = False
    form: CallForm | None = None

    @property
    def dims(self) -> dict[str, DynamicDim]:
        """Every dimension of the inputs by its name, in order of appearance."""
        return {size.name: size for spec in self.inputs.tensors for size in spec.shape if isinstance(size, DynamicDim)}

    @property
    def batch_dim(self) -> BatchDim | None:
        """The first batch dimension of the inputs, None where there is none."""
        return next((dim for dim in self.dims.values() if isinstance(dim, BatchDim)), None)

    def input_leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Return all leaves of a call, None if it is structured in another way.

        Raises:
            TypeError: If the call does not fit the signature.
        """
        leaves, structure = flatten(self.signature.bind(args, kwargs))
        return leaves if structure == self.inputs.structure else None

    def input_tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a call of this graph, in the order of ``inputs.tensors``.

        Raises:
            ValueError: If the call is structured in another way.
        """
        leaves = self.input_leaves(args, kwargs)
        if leaves is None:
            raise ValueError(f"the call is not one of {self.name}")
        return self.inputs.select_tensors(leaves)

    def call(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments made of ``tensors`` and the graph's constants."""
        return self.signature.call(self.inputs.unflatten(tensors), self.form)

    def output_tensors(self, outputs: Any) -> tuple[torch.Tensor, ...]:
        """Return the tensors of an output of this graph.

        Raises:
            ValueError: If the output is structured in another way.
        """
        leaves, structure = flatten(outputs)
        if structure != self.outputs.structure:
            raise ValueError(f"the output is not one of {self.name}")
        return self.outputs.select_tensors(leaves)

    def output(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return an output made of ``tensors`` and the constants that the original returned."""
        return self.outputs.unflatten(tensors)

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, int] | None:
        """Return the size of every dimension in a call, None where axes of one name disagree."""
        sizes: dict[str, int] = {}
        for spec, tensor in zip(self.inputs.tensors, tensors, strict=True):
            for size, seen in zip(spec.shape, tensor.shape, strict=True):
                if isinstance(size, DynamicDim) and sizes.setdefault(size.name, seen) != seen:
                    return None
        return sizes

    def lies_within(self, sample: Sample, ranges: Mapping[str, tuple[int, int]]) -> bool:
        """Whether the sizes of a call of this graph are within smaller ranges of some of its dimensions."""
        sizes = self.sizes(self.input_tensors(sample.args, sample.kwargs)) or {}
        return all(low <= sizes.get(name, low) <= high for name, (low, high) in ranges.items())

    def resized(self, sample: Sample, sizes: Mapping[str, int], seed: int = 0) -> Sample:
        """Make a sample of other sizes out of one: entries are repeated or left out along the axes that change.

        Values stay those of the sample, so that integer inputs (token ids, indices) stay legal.

        Args:
            sample: A recorded sample of this graph; not modified.
            sizes: New size by dimension name; dimensions that are not named keep theirs. A change of the batch
                dimension changes every batch dimension in proportion.
            seed: Which rows come first along a batch dimension; 0 keeps their order.

        Returns:
            A sample with tensors of its own.
        """
        tensors = self.input_tensors(sample.args, sample.kwargs)
        sizes = self._in_proportion(tensors, sizes)
        resized = [
            _resize(spec, tensor, sizes, seed) for spec, tensor in zip(self.inputs.tensors, tensors, strict=True)
        ]
        args, kwargs = self.call(resized)
        batch = self.batch_dim
        batch_size = sizes[batch.name] if batch is not None and batch.name in sizes else sample.batch_size
        return Sample(args, kwargs, batch_size)

    def with_batch_up_to(self, size: int) -> GraphSpec:
        """Return the graph with its batch dimension reaching to ``size``, the other batch dimensions in proportion."""
        batch = self.batch_dim
        if batch is None or size <= batch.max:
            return self
        limits = {
            dim.name: max(dim.max, dim.max * size // batch.max)
            for spec in (*self.inputs.tensors, *self.outputs.tensors)
            for dim in spec.shape
            if isinstance(dim, BatchDim)
        }
        return replace(self, inputs=_reaching(self.inputs, limits), outputs=_reaching(self.outputs, limits))

    def narrowed(self, ranges: Mapping[str, tuple[int, int]]) -> GraphSpec:
        """Return the graph with smaller ranges, those of the outputs included.

        Args:
            ranges: Smallest and largest size by dimension name; where they are equal the axis becomes static.
                Dimensions that are not named keep theirs.
        """
        return replace(self, inputs=_within(self.inputs, ranges), outputs=_within(self.outputs, ranges))

    def aimed_at(self, size: int) -> GraphSpec:
        """Return the graph with ``size`` as the one to optimise for, the other batch dimensions in proportion."""
        batch = self.batch_dim
        if batch is None:
            return self
        aims = {
            dim.name: min(max(dim.max * size // batch.max, dim.min), dim.max)
            for dim in self.dims.values()
            if isinstance(dim, BatchDim)
        }
        return replace(self, inputs=_aimed(self.inputs, aims))

    def _in_proportion(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> dict[str, int]:
        """Add the batch dimensions that follow from a new size of the first one."""
        batch, current, wanted = self.batch_dim, self.sizes(tensors), dict(sizes)
        if batch is None or current is None or batch.name not in sizes:
            return wanted
        for name, dim in self.dims.items():
            if isinstance(dim, BatchDim) and name not in wanted:
                wanted[name] = current[name] * sizes[batch.name] // current[batch.name]
        return wanted

    def describe(self) -> str:
        """Return one line: inputs with ranges, and outputs."""
        inputs = ", ".join(str(leaf) for leaf in self.inputs.leaves)
        outputs = ", ".join(str(leaf) for leaf in self.outputs.leaves)
        return f"{self.name}({inputs}) -> {outputs}"


def _reaching(spec: CallSpec, limits: Mapping[str, int]) -> CallSpec:
    return _sized(spec, lambda size: replace(size, max=limits[size.name]) if isinstance(size, BatchDim) else size)


def _within(spec: CallSpec, ranges: Mapping[str, tuple[int, int]]) -> CallSpec:
    def within(size: Size) -> Size:
        if not isinstance(size, DynamicDim) or size.name not in ranges:
            return size
        low, high = ranges[size.name]
        opt = None if size.opt is None else min(max(size.opt, low), high)
        return low if low == high else replace(size, min=low, max=high, opt=opt)

    return _sized(spec, within)


def _aimed(spec: CallSpec, aims: Mapping[str, int]) -> CallSpec:
    return _sized(spec, lambda size: replace(size, opt=aims[size.name]) if isinstance(size, BatchDim) else size)


def _sized(spec: CallSpec, change: Callable[[Size], Size]) -> CallSpec:
    leaves = (
        replace(leaf, shape=tuple(change(size) for size in leaf.shape)) if isinstance(leaf, TensorSpec) else leaf
        for leaf in spec.leaves
    )
    return CallSpec(spec.structure, tuple(leaves))


def _resize(spec: TensorSpec, tensor: torch.Tensor, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
    result = tensor.detach()
    for axis, size in enumerate(spec.shape):
        if isinstance(size, DynamicDim) and sizes.get(size.name, result.shape[axis]) != result.shape[axis]:
            first = seed if isinstance(size, BatchDim) else 0
            index = (torch.arange(sizes[size.name], device=result.device) + first) % result.shape[axis]
            result = result.index_select(axis, index)
    return result.clone()
