"""Random numbers for reading a dataset, drawn beside the global generators instead of from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["RandomStream"]


@dataclass(frozen=True)
class _States:
    """States of the global generators: of Python, numpy, torch on the CPU, and on CUDA if it is in use."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]

    @classmethod
    def now(cls) -> _States:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), tuple(cuda))  # noqa: NPY002

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


class RandomStream:
    """A private continuation of the global random generators.

    Code inside :meth:`entered` draws numbers as usual and sees the global generators go on from where it left
    them at the last visit; the first visit begins with a copy of their state, so a program that seeds itself
    stays reproducible. Outside, the generators are as if nothing had been drawn. Not thread-safe, as the
    generators are the process's.
    """

    def __init__(self) -> None:
        self._inside: _States | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Switch the global generators to this stream for a while."""
        outside = _States.now()
        if self._inside is not None:
            self._inside.restore()
        try:
            yield
        finally:
            self._inside = _States.now()
            outside.restore()
