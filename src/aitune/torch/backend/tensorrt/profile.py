"""Optimization profiles: for which sizes TensorRT is to choose its kernels."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.export.flat import input_name
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.job import Job

__all__ = ["InputRanges", "ProfileMode", "ShapeRange", "TensorRTProfile", "input_ranges"]


class ProfileMode(enum.Enum):
    """Profiles that are made from the graph."""

    SINGLE = "single"
    """One, over the whole range of each dimension."""

    SAMPLES_USED = "samples_used"
    """One for each set of sizes among the samples."""


@dataclass(frozen=True)
class ShapeRange:
    """Shapes of one input.

    Attributes:
        min: Smallest size of each axis.
        opt: Sizes to optimise for.
        max: Largest size of each axis.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


InputRanges = Mapping[str, ShapeRange]
"""Ranges by the name of an input in the exported graph."""


@dataclass
class TensorRTProfile:
    """An optimization profile of one's own; inputs that it does not name get the graph's range.

    Attributes:
        shapes: Range by input path, the first element being the parameter's name.
    """

    shapes: dict[tuple[str | int, ...], ShapeRange] = field(default_factory=dict)

    def add_input_shape(
        self,
        path: str | Sequence[str | int],
        min_shape: Sequence[int],
        opt_shape: Sequence[int],
        max_shape: Sequence[int],
    ) -> TensorRTProfile:
        """Set the range of one input.

        Args:
            path: Parameter name, or a path such as ``("options", "mask")``.
            min_shape: Smallest size of each axis.
            opt_shape: Sizes to optimise for.
            max_shape: Largest size of each axis.

        Returns:
            This profile, for further calls.

        Raises:
            AITuneUserInputError: If the ranks differ, or ``min <= opt <= max`` does not hold on every axis.
        """
        key = (path,) if isinstance(path, str) else tuple(path)
        shapes = [tuple(min_shape), tuple(opt_shape), tuple(max_shape)]
        if not key or not isinstance(key[0], str):
            raise AITuneUserInputError(f"TensorRTProfile: path must start with a parameter name, not {path!r}")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for s in shapes for size in s):
            raise AITuneUserInputError(f"TensorRTProfile: {path!r} has sizes that are no whole numbers: {shapes}")
        if len({len(shape) for shape in shapes}) != 1:
            raise AITuneUserInputError(f"TensorRTProfile: the shapes of {path!r} have different ranks: {shapes}")
        if not all(low <= best <= high for low, best, high in zip(*shapes, strict=True)):
            raise AITuneUserInputError(f"TensorRTProfile: min <= opt <= max must hold for {path!r}: {shapes}")
        self.shapes[key] = ShapeRange(*shapes)
        return self


def input_ranges(job: Job, profiles: ProfileMode | Sequence[TensorRTProfile]) -> list[InputRanges]:
    """Return the profiles of an engine for a job; together they take every call of the graph.

    Args:
        job: The job.
        profiles: A mode, or profiles of one's own, which come first and may cover a part of the graph's range.

    Raises:
        AITuneUserInputError: If a profile names an input that the graph does not have, or of another rank.
    """
    whole = _whole_range(job)
    if profiles is ProfileMode.SINGLE:
        return [whole]
    if isinstance(profiles, ProfileMode):
        return [*_ranges_of_samples(job), whole]
    return [*(_own_range(job, profile, whole) for profile in profiles), whole]


def _whole_range(job: Job) -> InputRanges:
    def shape(index: int, size: Any) -> tuple[int, ...]:
        return tuple(size(one) if isinstance(one, DynamicDim) else one for one in job.graph.inputs.tensors[index].shape)

    return {
        input_name(i): ShapeRange(
            shape(i, lambda dim: dim.min),
            shape(i, lambda dim: dim.max if dim.opt is None else dim.opt),
            shape(i, lambda dim: dim.max),
        )
        for i in range(len(job.graph.inputs.tensors))
    }


def _ranges_of_samples(job: Job) -> list[InputRanges]:
    found: dict[tuple[tuple[int, ...], ...], InputRanges] = {}
    for sample in job.samples:
        shapes = tuple(tuple(one.shape) for one in job.graph.input_tensors(sample.args, sample.kwargs))
        found[shapes] = {input_name(i): ShapeRange(shape, shape, shape) for i, shape in enumerate(shapes)}
    return list(found.values())


def _own_range(job: Job, profile: TensorRTProfile, whole: InputRanges) -> InputRanges:
    names = {tuple(spec.path): input_name(i) for i, spec in enumerate(job.graph.inputs.tensors)}
    ranges = dict(whole)
    for path, given in profile.shapes.items():
        if path not in names:
            known = ", ".join(map(repr, names))
            raise AITuneUserInputError(f"TensorRTProfile: the graph has no input {path!r}; it has {known}")
        name = names[path]
        if len(given.min) != len(whole[name].min):
            raise AITuneUserInputError(
                f"TensorRTProfile: {path!r} has {len(whole[name].min)} axes, the profile gives {len(given.min)}"
            )
        ranges[name] = given
    return ranges
