"""The forms of a dataset that hold samples, behind one face: how many there are, and the i-th."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.description import describe, type_name

__all__ = ["IndexedSamples", "StreamSamples", "failed", "samples_of"]


@dataclass(frozen=True)
class IndexedSamples:
    """Samples of a dataset with a length, fetched when they are asked for.

    Attributes:
        dataset: What the caller passed; ``dataset[i]`` is a sample.
        count: Number of samples, at least 1.
        in_memory: Whether fetching a sample costs nothing.
    """

    dataset: Any
    count: int
    in_memory: bool = False

    def available(self, _wanted: int) -> int:
        """Return how many samples there are."""
        return self.count

    def __getitem__(self, index: int) -> Any:
        try:
            sample = self.dataset[index]
        except Exception as error:  # the dataset is the user's code
            raise failed(f"reading sample {index} of the dataset", error) from error
        return _present(sample, index)


class StreamSamples:
    """Samples of an iterable, read once and no further than asked for; what was read is kept.

    Args:
        iterable: Anything that can be iterated, endless ones included. Its iterator is made at the first
            reading.
    """

    in_memory = False

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._source: Iterator[Any] | None = None
        self._kept: list[Any] = []

    def available(self, wanted: int) -> int:
        """Read until `wanted` samples are kept or the stream ends; return how many are kept.

        Raises:
            AITuneUserInputError: If the stream raises, holds None or holds nothing.
        """
        while len(self._kept) < wanted:
            index = len(self._kept)
            try:
                if self._source is None:
                    self._source = iter(self._iterable)
                sample = next(self._source)
            except StopIteration:
                break
            except Exception as error:  # the stream is the user's code
                raise failed(f"reading sample {index} of the dataset", error) from error
            self._kept.append(_present(sample, index))
        if not self._kept:
            raise AITuneUserInputError(f"the dataset yields no sample ({type_name(type(self._iterable))}): {_EMPTY}")
        return len(self._kept)

    def __getitem__(self, index: int) -> Any:
        return self._kept[index]

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while self.available(index + 1) > index:
            yield self._kept[index]
            index += 1


def samples_of(dataset: Any) -> IndexedSamples | StreamSamples:
    """Return the samples of a dataset; a tensor or an array is one sample.

    Nothing is read but the length.

    Raises:
        AITuneUserInputError: If the dataset is empty, or no form of one.
    """
    if isinstance(dataset, (torch.Tensor, np.ndarray)):
        return IndexedSamples([dataset], 1, in_memory=True)
    _check_form(dataset)
    if isinstance(dataset, IterableDataset) or not _has_length(dataset):
        return StreamSamples(dataset)
    try:
        count = len(dataset)
    except Exception as error:  # the dataset is the user's code
        raise failed("len(dataset)", error) from error
    if count == 0:
        raise AITuneUserInputError(f"the dataset is empty ({describe(dataset)}): {_EMPTY}")
    return IndexedSamples(dataset, count, in_memory=isinstance(dataset, (list, tuple)))


def failed(doing: str, error: Exception) -> AITuneUserInputError:
    """Return the error for code of the user that raised; one that is ours already stays as it is."""
    if isinstance(error, AITuneUserInputError):
        return error
    return AITuneUserInputError(f"{doing} raised {type_name(type(error))}: {error}. The cause is chained; fix it there")


_EMPTY = "pass at least one sample, such as [x] with x the input of one call without its batch axis"


def _check_form(dataset: Any) -> None:
    if dataset is None:
        raise AITuneUserInputError(f"the dataset is None: {_EMPTY}")
    if isinstance(dataset, Mapping):
        raise AITuneUserInputError(
            f"the dataset is a {describe(dataset)}, which is no sequence of samples: pass a list of dicts, "
            f"one a sample, or [dataset] if it is the keyword arguments of one sample"
        )
    if isinstance(dataset, (str, bytes)):
        raise AITuneUserInputError(f"the dataset is one {describe(dataset)}: pass a list of them, such as [text]")
    if isinstance(dataset, DataLoader):
        raise AITuneUserInputError("a DataLoader makes batches, and samples are needed here: pass its dataset")
    holds_samples = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    if not holds_samples or isinstance(dataset, (torch.nn.Module, type)):
        raise AITuneUserInputError(
            f"a dataset of type {type_name(type(dataset))} is not supported: pass a tensor, a list of "
            f"samples, a torch Dataset, an iterator, a DataLoader or a DataLoaderFactory"
        )


def _has_length(dataset: Any) -> bool:
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def _present(sample: Any, index: int) -> Any:
    if sample is None:
        raise AITuneUserInputError(
            f"sample {index} of the dataset is None, which is no input: leave it out, or pass "
            f"((None,), {{}}) if None is the argument"
        )
    return sample
