"""``dynamic_shapes=``: what the user declares about a module's inputs, held against what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.graph.dims import DynamicDim, Size
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.spec import CallSpec, Leaf, TensorSpec
from aitune.torch.graph.tree import Path, path_text

__all__ = ["DynamicShapes", "apply_declared", "validated"]

DynamicShapes = Mapping[Any, Sequence[Any]]
"""Parameter name, or path such as ``("options", "mask")``, to the size of every axis."""


def validated(module: str, declared: Any) -> dict[Path, tuple[Size, ...]]:
    """Check the form of a declaration.

    Args:
        module: The module's name, for messages.
        declared: What the user passed; None declares nothing.

    Raises:
        AITuneUserInputError: If it is not a mapping of paths to sizes, or one name stands for two ranges.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        raise AITuneUserInputError(
            f"{module}: dynamic_shapes must map parameter names or paths to sizes, not {declared!r}"
        )
    shapes: dict[Path, tuple[Size, ...]] = {}
    dims: dict[str, DynamicDim] = {}
    for key, sizes in declared.items():
        path: Path = key if isinstance(key, tuple) else (key,)
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
            raise AITuneUserInputError(
                f"{module}: dynamic_shapes[{key!r}] must be a tuple with one size per axis, not {sizes!r}"
            )
        for axis, size in enumerate(sizes):
            if isinstance(size, bool) or not isinstance(size, (int, DynamicDim)):
                raise AITuneUserInputError(
                    f"{module}: axis {axis} of {path_text(path)} must be a number, a DynamicDim or a BatchDim,"
                    f" not {size!r}"
                )
            if isinstance(size, DynamicDim) and dims.setdefault(size.name, size) != size:
                raise AITuneUserInputError(
                    f"{module}: dimension {size.name!r} is declared twice with different ranges:"
                    f" {dims[size.name]} and {size}"
                )
        shapes[path] = tuple(sizes)
    return shapes


def apply_declared(
    module: str, graph: GraphSpec, declared: Mapping[Path, tuple[Size, ...]], samples: Sequence[Sample]
) -> GraphSpec:
    """Return the graph with the declared sizes in place of the inferred ones.

    Outputs keep their inferred dimensions, renamed where an input with that inferred dimension was declared.

    Raises:
        AITuneUserInputError: On an unknown path, another rank, or a sample that contradicts the declaration; names the
            module, the path and the axis.
    """
    if not declared:
        return graph
    declared = {_resolved(module, graph, path): sizes for path, sizes in declared.items()}
    renamed: dict[str, Size] = {}
    leaves: list[Leaf] = []
    for leaf in graph.inputs.leaves:
        if not isinstance(leaf, TensorSpec) or leaf.path not in declared:
            leaves.append(leaf)
            continue
        sizes = declared[leaf.path]
        _check_rank(module, leaf, sizes)
        for old, new in zip(leaf.shape, sizes, strict=True):
            if isinstance(old, DynamicDim):
                renamed.setdefault(old.name, new)
        leaves.append(replace(leaf, shape=sizes))
    inputs = CallSpec(graph.inputs.structure, tuple(leaves))
    outputs = CallSpec(graph.outputs.structure, tuple(_renamed(leaf, renamed) for leaf in graph.outputs.leaves))
    result = replace(graph, inputs=inputs, outputs=outputs)
    for sample in samples:
        _check_sample(module, result, sample)
    return result


def _resolved(module: str, graph: GraphSpec, path: Path) -> Path:
    known = [leaf.path for leaf in graph.inputs.tensors]
    extra = graph.signature.var_keyword
    candidates = [path] if extra is None else [path, (extra, *path)]
    for candidate in candidates:
        if candidate in known:
            return candidate
    raise AITuneUserInputError(
        f"{module}: dynamic_shapes names {path_text(path)}, which is no tensor input of {graph.name};"
        f" its tensor inputs are {', '.join(path_text(one) for one in known) or 'none'}"
    )


def _check_rank(module: str, leaf: TensorSpec, sizes: tuple[Size, ...]) -> None:
    if len(sizes) != len(leaf.shape):
        raise AITuneUserInputError(
            f"{module}: dynamic_shapes gives {len(sizes)} sizes for {path_text(leaf.path)},"
            f" which has {len(leaf.shape)} axes"
        )


def _check_sample(module: str, graph: GraphSpec, sample: Sample) -> None:
    tensors = graph.input_tensors(sample.args, sample.kwargs)
    seen_at: dict[str, tuple[int, str]] = {}
    for spec, tensor in zip(graph.inputs.tensors, tensors, strict=True):
        for axis, (size, seen) in enumerate(zip(spec.shape, tensor.shape, strict=True)):
            place = f"axis {axis} of {path_text(spec.path)}"
            allowed = (size.min, size.max) if isinstance(size, DynamicDim) else (size, size)
            if not allowed[0] <= seen <= allowed[1]:
                kind = f"{size.name} = {size.min} to {size.max}" if isinstance(size, DynamicDim) else f"{size}"
                raise AITuneUserInputError(f"{module}: {place} is declared as {kind}, but a recorded call has {seen}")
            if isinstance(size, DynamicDim):
                other = seen_at.setdefault(size.name, (seen, place))
                if other[0] != seen:
                    raise AITuneUserInputError(
                        f"{module}: {place} and {other[1]} share the dimension {size.name!r},"
                        f" but a recorded call has {seen} and {other[0]}"
                    )


def _renamed(leaf: Any, names: Mapping[str, Size]) -> Any:
    if not isinstance(leaf, TensorSpec):
        return leaf
    shape = tuple(names.get(size.name, size) if isinstance(size, DynamicDim) else size for size in leaf.shape)
    return replace(leaf, shape=shape)
