"""Checkpoints: the engines of a tuned model in one file, to be shipped with it."""

from aitune.torch.checkpoint.load import load
from aitune.torch.checkpoint.save import save
from aitune.torch.checkpoint.storage import LocalTorchStorage

__all__ = ["LocalTorchStorage", "load", "save"]
