"""Turns what a user passes as a dataset into calls: forms of a dataset, collation, ``DataLoaderFactory``."""

from aitune.torch.dataloader.advice import explain_rejection
from aitune.torch.dataloader.batch import Batch
from aitune.torch.dataloader.collate import collate
from aitune.torch.dataloader.factory import DataLoaderFactory
from aitune.torch.dataloader.limits import DEFAULT_BATCH_SIZES, DEFAULT_BATCHES_PER_SIZE
from aitune.torch.dataloader.source import BatchSource

__all__ = [
    "DEFAULT_BATCHES_PER_SIZE",
    "DEFAULT_BATCH_SIZES",
    "Batch",
    "BatchSource",
    "DataLoaderFactory",
    "collate",
    "explain_rejection",
]
