"""``dynamic_shapes=``: what the user declares about a module's inputs, held against what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.graph.dims import DynamicDim, Shapes, Size
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.spec import CallSpec, Leaf, TensorSpec
from aitune.torch.graph.tree import Path, path_text

__all__ = ["DynamicShapes", "apply_declared", "check_known", "validated"]

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
    module: str, graph: GraphSpec, declared: Mapping[Path, tuple[Size, ...]], calls: Sequence[Shapes]
) -> GraphSpec:
    """Return the graph with the declared sizes in place of the inferred ones.

    Axes that are not declared, of inputs and outputs, keep their inferred dimensions; one that shared a dimension with
    a declared axis, or kept a fixed ratio to it, follows the declaration. A path that is no tensor of this graph is
    left out here: see :func:`check_known`.

    Args:
        module: The module's name, for messages.
        graph: The graph as it was recorded.
        declared: As :func:`validated` returns it.
        calls: Shapes of the input tensors of every recorded call.

    Raises:
        AITuneUserInputError: On another rank, or a call that contradicts the declaration; names the module, the path
            and the axis.
    """
    declared = {found: sizes for path, sizes in declared.items() if (found := _resolved(graph, path)) is not None}
    if not declared:
        return graph
    for leaf in graph.inputs.tensors:
        if leaf.path in declared:
            _check_rank(module, leaf, declared[leaf.path])
    renamed = _renamings(graph, declared)

    def applied(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, TensorSpec):
            return leaf
        inferred = tuple(renamed.get(size.name, size) if isinstance(size, DynamicDim) else size for size in leaf.shape)
        return replace(leaf, shape=_sharing(declared.get(leaf.path, inferred), renamed))

    def placed(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, TensorSpec):
            return leaf
        shape = (renamed.get(size.name, size) if isinstance(size, DynamicDim) else size for size in leaf.shape)
        return replace(leaf, shape=tuple(shape))

    inputs = CallSpec(graph.inputs.structure, tuple(applied(leaf) for leaf in graph.inputs.leaves))
    outputs = CallSpec(graph.outputs.structure, tuple(placed(leaf) for leaf in graph.outputs.leaves))
    result = replace(graph, inputs=inputs, outputs=outputs)
    for shapes in calls:
        _check_call(module, result, shapes)
    return result


def check_known(module: str, graphs: Sequence[GraphSpec], declared: Mapping[Path, tuple[Size, ...]]) -> None:
    """Refuse a path that is a tensor input of no graph.

    Raises:
        AITuneUserInputError: If there is one; names the module, the path and what there is.
    """
    for path in declared:
        if graphs and all(_resolved(graph, path) is None for graph in graphs):
            known = dict.fromkeys(path_text(leaf.path) for graph in graphs for leaf in graph.inputs.tensors)
            raise AITuneUserInputError(
                f"{module}: dynamic_shapes names {path_text(path)}, which is no tensor input of"
                f" {', '.join(graph.name for graph in graphs)}; the tensor inputs are {', '.join(known) or 'none'}"
            )


def _resolved(graph: GraphSpec, path: Path) -> Path | None:
    known = [leaf.path for leaf in graph.inputs.tensors]
    extra = graph.signature.var_keyword
    candidates = [path] if extra is None else [path, (extra, *path)]
    return next((candidate for candidate in candidates if candidate in known), None)


def _renamings(graph: GraphSpec, declared: Mapping[Path, tuple[Size, ...]]) -> dict[str, Size]:
    """Return what takes the place of each inferred dimension.

    That is the declared one where an axis with it was declared; the multiple of a declared one where both are of one
    unit; itself under another name where a declared dimension has its name.
    """
    renamed: dict[str, Size] = {}
    leaders: dict[str, tuple[DynamicDim, DynamicDim]] = {}
    for leaf in graph.inputs.tensors:
        for old, new in zip(leaf.shape, declared.get(leaf.path, ()), strict=False):
            if isinstance(old, DynamicDim):
                renamed.setdefault(old.name, new)
                if old.unit and isinstance(new, DynamicDim):
                    leaders.setdefault(old.unit, (old, new))
    taken = {size.name for sizes in declared.values() for size in sizes if isinstance(size, DynamicDim)}
    tensors = (*graph.inputs.tensors, *graph.outputs.tensors)
    for dim in (size for leaf in tensors for size in leaf.shape if isinstance(size, DynamicDim)):
        if dim.name in renamed:
            continue
        name = dim.name
        while name in taken:
            name += "_"
        taken.add(name)
        if dim.unit in leaders:
            old, new = leaders[dim.unit]
            renamed[dim.name] = _multiple_of(new, old, dim.changed(name=name))
            tied = new.of_unit(dim.unit, old.per_unit)
            renamed.update({key: tied for key, size in renamed.items() if size == new})
        else:
            renamed[dim.name] = dim.changed(name=name)
    return renamed


def _multiple_of(declared: DynamicDim, inferred: DynamicDim, other: DynamicDim) -> Size:
    """Return ``other`` with the range that follows from the declaration of a dimension of its unit."""
    low = max(1, -(-declared.min // inferred.per_unit)) * other.per_unit
    high = max(1, declared.max // inferred.per_unit) * other.per_unit
    return other.changed(min=low, max=high) if low < high else low


def _sharing(sizes: tuple[Size, ...], renamed: Mapping[str, Size]) -> tuple[Size, ...]:
    """Return declared sizes with the unit that they share with axes that are not declared."""
    tied = {size.name: size for size in renamed.values() if isinstance(size, DynamicDim)}
    return tuple(tied.get(size.name, size) if isinstance(size, DynamicDim) else size for size in sizes)


def _check_rank(module: str, leaf: TensorSpec, sizes: tuple[Size, ...]) -> None:
    if len(sizes) != len(leaf.shape):
        raise AITuneUserInputError(
            f"{module}: dynamic_shapes gives {len(sizes)} sizes for {path_text(leaf.path)},"
            f" which has {len(leaf.shape)} axes"
        )


def _check_call(module: str, graph: GraphSpec, shapes: Shapes) -> None:
    seen_at: dict[str, tuple[int, str]] = {}
    for spec, shape in zip(graph.inputs.tensors, shapes, strict=True):
        for axis, (size, seen) in enumerate(zip(spec.shape, shape, strict=True)):
            place = f"axis {axis} of {path_text(spec.path)}"
            allowed = (size.min, size.max) if isinstance(size, DynamicDim) else (size, size)
            if not allowed[0] <= seen <= allowed[1] and seen:  # an empty call is always the original's
                kind = f"{size.name} = {size.min} to {size.max}" if isinstance(size, DynamicDim) else f"{size}"
                raise AITuneUserInputError(f"{module}: {place} is declared as {kind}, but a recorded call has {seen}")
            if isinstance(size, DynamicDim):
                other = seen_at.setdefault(size.name, (seen, place))
                if other[0] != seen:
                    raise AITuneUserInputError(
                        f"{module}: {place} and {other[1]} share the dimension {size.name!r},"
                        f" but a recorded call has {seen} and {other[0]}"
                    )
