"""Recording: every call runs the original, and leaves behind shapes, structure and a bounded number of samples."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from aitune.torch.config import config
from aitune.torch.graph.sample import Sample, cloned
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.module.observation import Layout, Observation
from aitune.torch.module.slot import Slot

__all__ = ["MAX_GRAPHS_PER_STRUCTURE", "Recording", "batch_of"]

MAX_GRAPHS_PER_STRUCTURE = 8
"""Graphs that differ only in leaves that are no tensors: a scalar that always changes must not multiply builds."""

_batch_size: ContextVar[int | None] = ContextVar("aitune_batch_size", default=None)


@contextlib.contextmanager
def batch_of(size: int | None) -> Iterator[None]:
    """Tell recorders that calls in this block are made with a batch of this size."""
    token = _batch_size.set(size)
    try:
        yield
    finally:
        _batch_size.reset(token)


class Recording:
    """What was seen of the calls of one module. Holds no module, so it may outlive one; any thread may add to it.

    Args:
        signature: The forward's parameters.
        others: Threads whose calls are answered and not recorded: those that serve calls of their own meanwhile.

    Attributes:
        calls: Calls recorded.
        not_recorded: Calls that were answered and not recorded, by reason.
    """

    def __init__(self, signature: CallSignature, others: frozenset[int] = frozenset()) -> None:
        self.signature = signature
        self._others = others
        self.calls = 0
        self.not_recorded: dict[str, int] = {}
        self._lock = threading.Lock()
        self._observations: dict[Hashable, Observation] = {}
        self._by_structure: dict[Hashable, int] = {}

    @property
    def observations(self) -> tuple[Observation, ...]:
        """What was seen of each graph, in order of first appearance; graphs whose every call raised are left out."""
        with self._lock:
            return tuple(seen for seen in self._observations.values() if seen.outputs is not None)

    def call(self, slot: Slot, /, *args: Any, **kwargs: Any) -> Any:
        """Run the original and record the call; goes into the slot with its first argument bound.

        Exceptions of the original pass unchanged, and such a call is not recorded.
        """
        if threading.get_ident() in self._others:
            return slot.original(*args, **kwargs)
        reason = _not_plain()
        if reason is not None:
            self._skip(reason)
            return slot.original(*args, **kwargs)
        try:
            arguments = self.signature.bind(args, kwargs)
        except TypeError:
            return slot.original(*args, **kwargs)  # raises what the user would have seen
        inputs = Layout.of(arguments)
        seen = self._observation(inputs, slot.module.training, CallForm(len(args), tuple(kwargs)))
        if seen is None:
            self._skip(f"more than {MAX_GRAPHS_PER_STRUCTURE} values of an argument that is no tensor")
            return slot.original(*args, **kwargs)
        sample = _copy(args, kwargs) if seen.wants(inputs.shapes) else None
        result = slot.original(*args, **kwargs)
        outputs = Layout.of(result)
        with self._lock:
            self.calls += 1
            seen.add(inputs, outputs, sample, _batch_size.get())
        return result

    def _observation(self, inputs: Layout, training: bool, form: CallForm) -> Observation | None:
        key = training, inputs.identity(constants=config.strict_mode)
        structure = training, inputs.identity(constants=False)
        with self._lock:
            if key not in self._observations:
                if self._by_structure.get(structure, 0) >= MAX_GRAPHS_PER_STRUCTURE:
                    return None
                self._by_structure[structure] = self._by_structure.get(structure, 0) + 1
                self._observations[key] = Observation(inputs, training, form, config.max_num_samples_stored)
            return self._observations[key]

    def _skip(self, reason: str) -> None:
        with self._lock:
            self.not_recorded[reason] = self.not_recorded.get(reason, 0) + 1


def _copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    own_args, own_kwargs = cloned((args, kwargs))
    return Sample(own_args, own_kwargs, _batch_size.get())


def _not_plain() -> str | None:
    """Return why a call in this context cannot be one of a graph."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "tracing"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func transform"
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        return "autocast"
    return None
