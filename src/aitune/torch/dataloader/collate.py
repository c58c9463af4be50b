"""Makes one batch of several samples, keeping their structure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.description import describe
from aitune.torch.graph.tree import flatten

__all__ = ["collate"]

_PLAIN = (torch.device, torch.dtype, torch.layout, torch.memory_format, torch.Size, range, slice, type)
"""Settings that are told apart by value; other objects by identity."""


def collate(samples: Sequence[Any], indices: Sequence[int] | None = None) -> Any:
    """Make one batch of several samples.

    Tensors and arrays of one shape, dtype and device are stacked along a new first axis into a new tensor;
    strings and bytes become lists; None stays None. Scalars that are equal stay a scalar, others become a
    tensor of shape ``(len(samples),)``. Tuples, lists, named tuples, mappings, dataclasses and the types that
    ``torch.utils._pytree`` knows are collated item by item and keep their type; a dataclass that holds no
    tensor and is the same in all samples is passed on as it is, as are other objects.

    Args:
        samples: At least one sample. They are not modified, and no tensor of the result shares their memory.
        indices: Their places in the dataset, for errors; None counts them from 0.

    Returns:
        A value of the structure of the first sample. Its tensors do not require gradients.

    Raises:
        AITuneUserInputError: If there is no sample, or the samples do not fit together.
    """
    if not samples:
        raise AITuneUserInputError("no samples to collate: a batch needs at least one")
    return _join(list(samples), _Place("sample", tuple(indices or range(len(samples)))))


class _Kind(Enum):
    """How values are joined."""

    NONE = "none"
    CHOICE = "choice"
    TENSOR = "tensor"
    TEXT = "text"
    SCALAR = "scalar"
    MAPPING = "mapping"
    RECORD = "record"
    SEQUENCE = "sequence"
    OBJECT = "object"


@dataclass(frozen=True)
class _Place:
    """Where values stand: the path in each sample, and the samples' places in the dataset."""

    path: str
    indices: tuple[int, ...]

    def item(self, key: object) -> _Place:
        return _Place(f"{self.path}[{key!r}]", self.indices)

    def attribute(self, name: str) -> _Place:
        return _Place(f"{self.path}.{name}", self.indices)

    def differ(self, values: Sequence[Any], other: int, words: Callable[[Any], str] = describe) -> AITuneUserInputError:
        """Say that the values at 0 and at `other` do not fit together."""
        return AITuneUserInputError(
            f"{self.path} is {words(values[0])} in sample {self.indices[0]} but {words(values[other])} in "
            f"sample {self.indices[other]}, so the two cannot be one batch: {_ADVICE}"
        )

    def impossible(self, value: object, reason: str) -> AITuneUserInputError:
        return AITuneUserInputError(f"{self.path} is {describe(value)}, which cannot be collated ({reason}): {_ADVICE}")


_ADVICE = (
    "make the samples alike, pass DataLoaderFactory(dataset, collate_fn=...) with a function that makes a "
    "batch of a list of samples (by padding, for instance), or use batch_sizes=[1]"
)


def _join(values: list[Any], place: _Place) -> Any:
    kind = _kind_of(values[0])
    for other, value in enumerate(values):
        if _kind_of(value) is not kind:
            raise place.differ(values, other)
    return _JOINERS[kind](values, place)


def _kind_of(value: object) -> _Kind:
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return _Kind.RECORD if is_record else _Kind.OBJECT


def _holds_tensor(value: object) -> bool:
    return any(isinstance(leaf, (torch.Tensor, np.ndarray)) for leaf in flatten(value)[0])


_KINDS: tuple[tuple[type | tuple[type, ...], _Kind], ...] = (
    (type(None), _Kind.NONE),
    (Enum, _Kind.CHOICE),  # before the scalars and strings: IntEnum, StrEnum
    ((torch.Tensor, np.ndarray), _Kind.TENSOR),
    ((str, bytes), _Kind.TEXT),
    ((bool, int, float, complex, np.generic), _Kind.SCALAR),
    (Mapping, _Kind.MAPPING),
    (torch.Size, _Kind.OBJECT),
    ((tuple, list), _Kind.SEQUENCE),
)


def _join_none(_values: list[Any], _place: _Place) -> None:
    return None


def _join_choices(values: list[Enum], place: _Place) -> Enum:
    for other, value in enumerate(values):
        if value is not values[0]:
            raise place.differ(values, other, str)
    return values[0]


def _join_tensors(values: list[Any], place: _Place) -> torch.Tensor:
    tensors = [value if isinstance(value, torch.Tensor) else _tensor_of(value, place) for value in values]
    for other, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise place.differ(tensors, other)
        if tensor.device != tensors[0].device:
            raise place.differ(tensors, other, lambda found: f"on {found.device}")
    try:
        with torch.no_grad():
            return torch.stack(tensors)
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
    ) as error:  # layouts and subclasses that do not stack
        raise place.impossible(values[0], str(error)) from error


def _tensor_of(array: np.ndarray[Any, Any], place: _Place) -> torch.Tensor:
    try:
        # A copy in the machine's byte order: torch takes no other, and warns about arrays that are read-only.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise place.impossible(array, "torch has no such dtype") from error


def _join_texts(values: list[Any], _place: _Place) -> list[Any]:
    return values


def _join_scalars(values: list[Any], place: _Place) -> Any:
    if _all_equal(values):
        return max(values, key=lambda value: (not isinstance(value, Real), not isinstance(value, Integral)))
    try:
        if all(isinstance(value, np.generic) for value in values):
            return torch.from_numpy(np.stack(values))
        return torch.tensor([value.item() if isinstance(value, np.generic) else value for value in values])
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # beyond int64, dates, ...
        raise place.impossible(values[0], f"differing values that no tensor holds: {error}") from error


def _all_equal(values: list[Any]) -> bool:
    """Whether numbers are equal: NaN is equal to NaN, but True is not equal to 1."""
    first = values[0]
    bools = {isinstance(value, (bool, np.bool_)) for value in values}
    same = all(bool(value == first) or (_is_nan(value) and _is_nan(first)) for value in values)
    return same and len(bools) == 1


def _is_nan(value: Any) -> bool:
    return bool(value != value)  # noqa: PLR0124


def _join_mappings(values: list[Any], place: _Place) -> Any:
    first = values[0]
    for other, value in enumerate(values):
        if type(value) is not type(first) or set(value) != set(first):
            raise place.differ(values, other)
    joined = {key: _join([value[key] for value in values], place.item(key)) for key in first}
    kind = type(first)
    try:
        if kind is dict:
            return joined
        if dataclasses.is_dataclass(kind):  # ModelOutput of transformers: a dict whose keys are its fields
            return kind(**joined)
        if isinstance(first, dict):  # a defaultdict keeps its factory
            result = copy.copy(first)
            result.update(joined)
            return result
        return kind(joined)
    except Exception as error:  # the constructor is the user's
        raise place.impossible(first, f"its type cannot be made of a dict: {error}") from error


def _join_records(values: list[Any], place: _Place) -> Any:
    first = values[0]
    for other, value in enumerate(values):
        if type(value) is not type(first):
            raise place.differ(values, other)
    if not any(map(_holds_tensor, values)) and all(value is first or value == first for value in values):
        return first  # settings, such as a model's configuration
    result = copy.copy(first)  # not through __init__: fields may be init=False, and __post_init__ may have effects
    for item in dataclasses.fields(first):
        column = [getattr(value, item.name) for value in values]
        object.__setattr__(result, item.name, _join(column, place.attribute(item.name)))
    return result


def _join_sequences(values: list[Any], place: _Place) -> Any:
    first = values[0]
    for other, value in enumerate(values):
        if type(value) is not type(first) or len(value) != len(first):
            raise place.differ(values, other)
    joined = [_join(list(column), place.item(index)) for index, column in enumerate(zip(*values, strict=True))]
    try:
        return type(first)._make(joined) if hasattr(first, "_fields") else type(first)(joined)
    except Exception as error:  # the constructor is the user's
        raise place.impossible(first, f"its type cannot be made of a list: {error}") from error


def _join_objects(values: list[Any], place: _Place) -> Any:
    first = values[0]
    if isinstance(first, _PLAIN):
        for other, value in enumerate(values):
            if value != first:
                raise place.differ(values, other, repr)
        return first
    flat = [flatten(value) for value in values]
    structure = flat[0][1]
    if _holds_tensor(first) and all(other == structure for _, other in flat) and not structure.is_leaf:
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        return structure.unflatten([_join(list(column), place.item(index)) for index, column in enumerate(columns)])
    if all(value is first for value in values):
        return first
    raise place.impossible(
        first, "it is no tensor, array, string, number or container of them, and another one in each sample"
    )


_JOINERS: Mapping[_Kind, Callable[[list[Any], _Place], Any]] = MappingProxyType(
    {
        _Kind.NONE: _join_none,
        _Kind.CHOICE: _join_choices,
        _Kind.TENSOR: _join_tensors,
        _Kind.TEXT: _join_texts,
        _Kind.SCALAR: _join_scalars,
        _Kind.MAPPING: _join_mappings,
        _Kind.RECORD: _join_records,
        _Kind.SEQUENCE: _join_sequences,
        _Kind.OBJECT: _join_objects,
    }
)
