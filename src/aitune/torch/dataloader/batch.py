"""One call of the user's function: the positional and keyword arguments that a batch stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.description import describe

__all__ = ["Batch", "Form", "leading_size"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of one call, ``func(*batch.args, **batch.kwargs)``.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        size: Number of samples it was collated from. For a user's own ``DataLoader`` the leading size of the
            first tensor in it; None if there is none with an axis.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    size: int | None = None


class Form(Enum):
    """Which arguments a sample or a batch stands for.

    It is read from the sample and then holds for the batch: strings collate to a list, for instance, which
    would mean positional arguments if it were a sample.
    """

    ONE = "one argument"
    POSITIONAL = "positional arguments"
    KEYWORDS = "keyword arguments"
    PAIR = "a pair of positional and keyword arguments"

    @classmethod
    def of_sample(cls, sample: Any) -> Form:
        """Return the form of one sample.

        A mapping is keyword arguments. A tuple of two is a pair if its first item is a tuple or a list and
        its second a dict whose keys are strings. Every other tuple, and a list, is positional arguments;
        anything else is one argument.
        """
        if isinstance(sample, Mapping):
            return cls.KEYWORDS
        if isinstance(sample, tuple) and _is_pair(sample):
            return cls.PAIR
        return cls.POSITIONAL if isinstance(sample, (tuple, list)) else cls.ONE

    @classmethod
    def of_batch(cls, batch: Any) -> Form:
        """Return the form of what a ``DataLoader`` yields, for which there is no sample to look at.

        As for a sample, except for what torch's own collation makes of one: a list may be a pair too, since
        the tuples of a sample became lists; and a list that holds nothing but strings is a batch of them, one
        argument.
        """
        if isinstance(batch, list) and _is_pair(batch):
            return cls.PAIR
        is_text = isinstance(batch, list) and bool(batch) and all(isinstance(item, (str, bytes)) for item in batch)
        return cls.ONE if is_text else cls.of_sample(batch)

    def arguments(self, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the keyword arguments in a value of this form.

        Raises:
            AITuneUserInputError: If a mapping has keys that are no strings.
        """
        if self is Form.PAIR:
            return tuple(value[0]), dict(value[1])
        if self is Form.POSITIONAL:
            return tuple(value), {}
        if self is Form.ONE:
            return (value,), {}
        if not all(isinstance(key, str) for key in value):
            raise AITuneUserInputError(
                f"a {describe(value)} cannot be keyword arguments: use names as keys, or wrap each sample as "
                f"((sample,), {{}}) to pass the mapping as one argument"
            )
        return (), dict(value.items())


def leading_size(*values: object) -> int | None:
    """Return the size of the first axis of the first tensor that has one, depth first; None without any."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.ndim:
            return value.shape[0]
        size = leading_size(*_children(value))
        if size is not None:
            return size
    return None


def _is_pair(value: tuple[Any, ...] | list[Any]) -> bool:
    return (
        len(value) == 2
        and isinstance(value[0], (tuple, list))
        and isinstance(value[1], dict)
        and all(isinstance(key, str) for key in value[1])
    )


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, item.name, None) for item in dataclasses.fields(value)]
    return ()
