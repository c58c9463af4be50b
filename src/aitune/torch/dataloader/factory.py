"""Makes a loader for each batch size; what users subclass to make their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.collate import collate
from aitune.torch.dataloader.dataset import IndexedSamples, StreamSamples, samples_of
from aitune.torch.dataloader.description import describe
from aitune.torch.dataloader.selection import in_order

__all__ = ["DataLoaderFactory"]


class DataLoaderFactory:
    """Makes a loader of full batches for each batch size.

    Subclasses override :meth:`create_dataloader`; nothing else of the class is called.

    Args:
        dataset: A tensor (one sample, without batch axis), a sequence, a torch ``Dataset`` or an iterable of
            samples. An iterator is read once, no further than needed, and what was read serves every batch
            size.
        collate_fn: Makes a batch of a list of samples; None stacks them
            (:func:`~aitune.torch.dataloader.collate`). What it returns is taken as a sample is: a mapping is
            keyword arguments, a tuple or list positional ones.
        num_workers: Processes that read samples, as in ``torch.utils.data.DataLoader``; 0 reads in this one.

    Raises:
        AITuneUserInputError: If `collate_fn` cannot be called or `num_workers` is no integer of at least 0.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None, num_workers: int = 0
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            raise AITuneUserInputError(
                f"collate_fn must be a function of a list of samples or None, got {describe(collate_fn)}"
            )
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise AITuneUserInputError(
                f"num_workers must be an integer of at least 0, got {num_workers!r}: 0 reads in this process"
            )
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.num_workers = num_workers
        self._samples: IndexedSamples | StreamSamples | None = None

    def create_dataloader(self, batch_size: int) -> Iterable[Any]:
        """Return the batches of one size, each full.

        Every sample of a dataset with a length is used: where the size does not divide it, the last batch
        begins earlier. Fewer samples than one batch are repeated from the start. The global random generators
        are left alone.

        Args:
            batch_size: Samples a batch, at least 1.

        Returns:
            A ``torch.utils.data.DataLoader``. An override may return any iterable of batches.

        Raises:
            AITuneUserInputError: If the dataset is empty or no form of one, or if an iterator is to be read
                by workers.
        """
        if self._samples is None:
            self._samples = samples_of(self.dataset)
        samples = self._samples
        rows: Dataset[Any]
        if isinstance(samples, IndexedSamples):
            rows, order = _Rows(samples), _Order(samples.count, batch_size)
        else:
            rows, order = _Stream(self._stream(samples), batch_size), None
        return DataLoader(
            rows,
            batch_size=batch_size,
            sampler=order,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn or collate,
            drop_last=True,
            generator=torch.Generator().manual_seed(0),  # else the loader draws its seed from the global generator
        )

    def _stream(self, samples: StreamSamples) -> Iterable[Any]:
        if isinstance(self.dataset, IterableDataset) and self.num_workers:
            return self.dataset  # each worker reads its own copy, and shards it with torch's get_worker_info
        if self.num_workers:
            raise AITuneUserInputError(
                f"a {describe(self.dataset)} can be read once only, so worker processes cannot share it: use "
                f"num_workers=0 or a torch IterableDataset"
            )
        return samples


class _Rows(Dataset[Any]):
    """Samples in the shape that a ``DataLoader`` asks for."""

    def __init__(self, samples: IndexedSamples) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


class _Order(Sampler[int]):
    """Indices in which consecutive runs of the batch size are the batches."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._count = count
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[int]:
        for indices in in_order(lambda _: self._count, self._batch_size):
            yield from indices

    def __len__(self) -> int:
        return -(-self._count // self._batch_size) * self._batch_size


class _Stream(IterableDataset[Any]):
    """Samples of an iterable in runs of the batch size, each full, as :func:`in_order` makes them."""

    def __init__(self, samples: Iterable[Any], batch_size: int) -> None:
        self._samples = samples
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        last: list[Any] = []
        batch: list[Any] = []
        for sample in self._samples:
            batch.append(sample)
            if len(batch) == self._batch_size:
                yield from batch
                last, batch = batch, []
        if batch and last:
            yield from (last + batch)[-self._batch_size :]
        elif batch:
            yield from islice(cycle(batch), self._batch_size)
