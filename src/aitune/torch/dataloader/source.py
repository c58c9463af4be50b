"""The batches of a dataset, whatever its form; what ``tune()`` runs the user's function with."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.batch import Batch, Form, leading_size
from aitune.torch.dataloader.collate import collate
from aitune.torch.dataloader.dataset import IndexedSamples, StreamSamples, failed, samples_of
from aitune.torch.dataloader.description import describe
from aitune.torch.dataloader.factory import DataLoaderFactory
from aitune.torch.dataloader.limits import Limits
from aitune.torch.dataloader.random_stream import RandomStream
from aitune.torch.dataloader.selection import in_order, spread

__all__ = ["BatchSource"]


class BatchSource:
    """The batches of a dataset. Not thread-safe, as an iterator is not.

    Args:
        dataset: A tensor (one sample, without batch axis), a sequence, torch ``Dataset`` or iterable of
            samples, a ``DataLoader`` or a :class:`DataLoaderFactory`. See
            :meth:`~aitune.torch.dataloader.batch.Form.of_sample` for what a sample may be.
        batch_sizes: Sizes that samples are collated to, None for 1 and 2. Not used for a ``DataLoader``.
        max_num_batches_per_batch_size: The most batches of each size, the first ones of the dataset; None
            takes at most :data:`~aitune.torch.dataloader.limits.DEFAULT_BATCHES_PER_SIZE`, spread over a
            dataset that has a length.

    Attributes:
        limits: The batch sizes and the number of batches that are used.
        notes: Sentences that the user should read, e.g. that `batch_sizes` is not used.

    Raises:
        AITuneUserInputError: If an argument cannot be used or the dataset is seen to be empty. Nothing is
            read before :meth:`batches`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sizes: Sequence[int] | None = None,
        max_num_batches_per_batch_size: int | None = None,
    ) -> None:
        self.limits = Limits.checked(batch_sizes, max_num_batches_per_batch_size)
        self._dataset = dataset
        self._samples = None if isinstance(dataset, (DataLoader, DataLoaderFactory)) else samples_of(dataset)
        self.notes = _notes(dataset, self.limits)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches, size after size in the order of `batch_sizes`.

        The first batch of every size (of a list or tuple: every batch) is made before the first one is
        yielded, so a dataset that cannot be collated fails before anything runs. Calling again begins again;
        samples of an iterator, which can be read only once, are kept for that. The global random generators
        are as before at every yield.

        Raises:
            AITuneUserInputError: If samples cannot be read or collated, or there are none.
        """
        stream = RandomStream()
        batches = self._batches()
        try:
            while True:
                with stream.entered():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        finally:
            batches.close()

    def _batches(self) -> Generator[Batch, None, None]:
        if self._samples is not None:
            yield from self._of_samples(self._samples)
        elif isinstance(self._dataset, DataLoader):
            yield from self._of_loader(self._dataset, "the DataLoader")
        else:
            yield from self._of_factory(self._dataset)

    def _of_samples(self, samples: IndexedSamples | StreamSamples) -> Iterator[Batch]:
        if samples.in_memory:
            for size in self.limits.batch_sizes:
                deque(self._collated(samples, size), maxlen=0)
        yield from _begun([self._collated(samples, size) for size in self.limits.batch_sizes])

    def _collated(self, samples: IndexedSamples | StreamSamples, size: int) -> Iterator[Batch]:
        for indices in self._chosen(samples, size):
            chosen = [samples[index] for index in indices]
            args, kwargs = Form.of_sample(chosen[0]).arguments(collate(chosen, indices))
            yield Batch(args, kwargs, size)

    def _chosen(self, samples: IndexedSamples | StreamSamples, size: int) -> Iterator[Sequence[int]]:
        if self.limits.per_size is None and isinstance(samples, IndexedSamples):
            return spread(samples.count, size, self.limits.most)
        return in_order(samples.available, size, self.limits.most)

    def _of_loader(self, loader: Iterable[Any], name: str, asked: int | None = None) -> Iterator[Batch]:
        usual: int | None = None
        number = -1
        for number, value in enumerate(islice(_reading(loader, name), self.limits.most)):
            if value is None:
                raise AITuneUserInputError(f"batch {number} of {name} is None: let its collate_fn return the batch")
            args, kwargs = Form.of_batch(value).arguments(value)
            leading = leading_size(*args, *kwargs.values())
            usual = leading if number == 0 else usual
            yield Batch(args, kwargs, _size_of(leading, usual, asked))
        if number < 0:
            raise AITuneUserInputError(f"{name} yields no batch: give it a dataset with at least one full batch")

    def _of_factory(self, factory: DataLoaderFactory) -> Iterator[Batch]:
        loaders = []
        for size in self.limits.batch_sizes:
            name = f"{type(factory).__name__}.create_dataloader({size})"
            try:
                loader = factory.create_dataloader(size)
            except Exception as error:  # may be the user's override
                raise failed(name, error) from error
            if not hasattr(loader, "__iter__"):
                raise AITuneUserInputError(f"{name} returned {describe(loader)}: return an iterable of batches")
            loaders.append(self._of_loader(loader, name, size))
        yield from _begun(loaders)


def _begun(streams: list[Iterator[Batch]]) -> Iterator[Batch]:
    """Yield everything of each stream in turn, having read the first batch of all of them before."""
    waiting = deque((next(stream, None), stream) for stream in streams)
    while waiting:
        first, rest = waiting.popleft()
        if first is not None:
            yield first
        del first  # a batch may be large: keep none that the caller has let go
        yield from rest


def _reading(loader: Iterable[Any], name: str) -> Iterator[Any]:
    number = 0
    try:
        for value in loader:
            yield value
            number += 1
    except Exception as error:  # the loader and its dataset are the user's code
        raise failed(f"reading batch {number} of {name}", error) from error


def _size_of(leading: int | None, usual: int | None, asked: int | None) -> int | None:
    """Return the size of a batch of a loader.

    Args:
        leading: The leading size of its first tensor.
        usual: The same of the loader's first batch.
        asked: The size that a factory was asked for, None for a user's own loader.
    """
    if asked is None:
        return leading
    # The last batch may be smaller. If the first one does not lead with the batch, the axis is elsewhere.
    return leading if usual == asked and leading is not None else asked


def _notes(dataset: Any, limits: Limits) -> tuple[str, ...]:
    if isinstance(dataset, DataLoader):
        return ("The batches of a DataLoader are used as they come; batch_sizes is not used.",)
    if len(limits.batch_sizes) == 1:
        size = limits.batch_sizes[0]
        pair = [1, size] if size > 1 else [1, 2]
        note = (
            f"batch_sizes=[{size}] is one size, which does not tell the batch axis: shapes are static unless "
            f"dynamic_shapes declares them. Give two sizes, such as batch_sizes={pair}, for a batch axis."
        )
        return (note,)
    return ()
