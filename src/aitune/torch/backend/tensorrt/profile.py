"""Optimization profiles: for which sizes TensorRT is to choose its kernels."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from aitune.exceptions import AITuneUserInputError

__all__ = ["ProfileMode", "ShapeRange", "TensorRTProfile"]


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
