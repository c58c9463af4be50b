"""In which manner a call is made: what a caller is free to choose and must not change the answer."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from aitune.torch.check.trace import calm
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.tree import flatten

__all__ = ["Manner", "in_another_thread", "other_contents"]

_PATIENCE = 10.0
"""Seconds for a call in another thread: one that waits for something that the thread which tunes holds never ends."""

T = TypeVar("T")


class Manner(enum.Enum):
    """A manner of calling, in the words of a report. Each is tried with inputs that are right when called plainly."""

    PLAIN = ""
    GRADIENTS = "with gradients enabled"
    INFERENCE = "in inference mode"
    REFILLED = "in tensors that held other contents in the call before"
    WITHIN = "in tensors that begin within larger ones"
    ROWS = "in every second row of larger tensors"
    COLUMNS = "in every second column of larger tensors"
    THREAD = "in another thread"

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        """Return the mode of torch that the call is made in; without one it is the caller's."""
        if self is Manner.GRADIENTS:
            return torch.enable_grad()
        return torch.inference_mode() if self is Manner.INFERENCE else contextlib.nullcontext()

    def laid(self, sample: Sample) -> Sample:
        """Return inputs that a call in this manner is made with; called within :meth:`mode`.

        Args:
            sample: The inputs, copies that nobody else has. Tensors that are one object stay one.
        """
        if self is Manner.PLAIN:
            return sample
        leaves, structure = flatten((sample.args, dict(sample.kwargs)))
        made = {id(leaf): self._laid(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        args, kwargs = structure.unflatten([made.get(id(leaf), leaf) for leaf in leaves])
        return Sample(args, kwargs, sample.batch_size)

    def _laid(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if self is Manner.INFERENCE:
            return plain.clone()
        if plain.layout is not torch.strided or not plain.dim() or not plain.numel():
            return plain
        if self is Manner.WITHIN:
            return torch.cat([other_contents(plain[:1]), plain])[1:]
        if self is Manner.ROWS:
            return torch.stack([plain, other_contents(plain)], dim=1)[:, 0]
        if self is Manner.COLUMNS:
            return torch.stack([plain, other_contents(plain)], dim=-1)[..., 0]
        return plain


def other_contents(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same form with other contents: reversed along an axis where that makes one.

    Integers stay values that were seen; a floating tensor that is the same in any order is halved.
    """
    other = tensor.detach().clone()
    for axis in range(tensor.dim()):
        if not torch.equal(other.flip(axis), other):
            return other.flip(axis)
    return other * 0.5 if other.is_floating_point() else other


def in_another_thread(make: Callable[[], T]) -> T:
    """Return what a function returns in a thread of its own, in the mode in which values are checked.

    Raises:
        TimeoutError: If it does not come back; the thread is left behind.
        BaseException: What the function raises.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with calm():
                answers.append(make())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=work, name="aitune-check", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"a call in another thread did not come back within {_PATIENCE:g} s")
    return answers[0]
