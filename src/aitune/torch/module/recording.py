"""Recording: every call runs the original, and leaves behind shapes, structure and a bounded number of samples."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.config import config
from aitune.torch.graph.sample import Sample, cloned
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import is_plain_tensor
from aitune.torch.graph.tree import flatten
from aitune.torch.module.observation import Layout, Observation
from aitune.torch.module.route import PLAIN
from aitune.torch.module.slot import Slot

__all__ = ["MAX_GRAPHS_PER_STRUCTURE", "Recording", "batch_of"]

MAX_GRAPHS_PER_STRUCTURE = 8
"""Graphs that differ only in leaves that are no tensors: a scalar that always changes must not multiply builds.

Beyond, the last of them is one for every further value, which an engine has to take as it takes tensors.
"""

MAX_GRAPHS = 64
"""Graphs of one module: arguments that are nested in another way at each call must not multiply builds either."""

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
        self._by_structure: dict[Hashable, list[Hashable]] = {}

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
        taken = self._taken(arguments, args, kwargs, slot.module.training)
        result = slot.original(*args, **kwargs)
        if taken is not None:
            try:
                outputs = Layout.of(result)
            except Exception as error:  # noqa: BLE001 - the user's own object; the answer has to be returned
                self._skip(f"an output that cannot be looked into ({type(error).__name__})")
                return result
            with self._lock:
                self.calls += 1
                taken.seen.mutates = taken.seen.mutates or taken.mutated
                taken.seen.add(taken.inputs, outputs, taken.sample, _batch_size.get())
        return result

    def _taken(
        self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
    ) -> _Taken | None:
        """Return what is kept of a call that is about to be made, None where it is not recorded."""
        try:
            inputs = Layout.of(arguments)
            seen = self._observation(inputs, training, CallForm(len(args), tuple(kwargs)))
            if isinstance(seen, str):
                self._skip(seen)
                return None
            sample = _copy(args, kwargs) if seen.wants(inputs.shapes) else None
            if sample is not None and Layout.of(self.signature.bind(sample.args, sample.kwargs)) != inputs:
                self._skip("an argument that is another one after its parts were copied")
                return None
        except Exception as error:  # noqa: BLE001 - containers are the user's code, and the call has to be answered
            self._skip(f"an argument that cannot be copied ({text_of(error)})")
            return None
        return _Taken(seen, inputs, sample, _versions(arguments))

    def _observation(self, inputs: Layout, training: bool, form: CallForm) -> Observation | str:
        """Return where a call belongs, or why it belongs nowhere."""
        structure = training, inputs.identity(constants=False)
        key = (training, inputs.identity(constants=True)) if config.strict_mode else structure
        with self._lock:
            alike = self._by_structure.setdefault(structure, [])
            if key in self._observations:
                return self._observations[key]
            if structure in self._observations:
                return self._observations[structure]
            if len(alike) >= MAX_GRAPHS_PER_STRUCTURE:
                return self._for_any_value(structure, alike)
            if len(self._observations) >= MAX_GRAPHS:
                return f"more than {MAX_GRAPHS} structures of arguments"
            seen = Observation(inputs, training, form, config.max_num_samples_stored)
            alike.append(key)
            self._observations[key] = seen
            return seen

    def _for_any_value(self, structure: Hashable, alike: list[Hashable]) -> Observation:
        """Let the last graph of a structure take every value that has none of its own."""
        key = alike.pop()
        seen = self._observations.pop(key)
        for other in alike:
            seen.note_values(self._observations[other].inputs)
        self._observations[structure] = seen
        return seen

    def _skip(self, reason: str) -> None:
        with self._lock:
            self.not_recorded[reason] = self.not_recorded.get(reason, 0) + 1


@dataclass(frozen=True)
class _Taken:
    """What is kept of a call while the original runs: where it belongs, its inputs, and the versions of its tensors."""

    seen: Observation
    inputs: Layout
    sample: Sample | None
    versions: tuple[tuple[torch.Tensor, int], ...]

    @property
    def mutated(self) -> bool:
        """Whether the call has changed an input in place."""
        return any(tensor._version != version for tensor, version in self.versions)


def _versions(arguments: dict[str, Any]) -> tuple[tuple[torch.Tensor, int], ...]:
    tensors = (leaf for leaf in flatten(arguments)[0] if is_plain_tensor(leaf) and not leaf.is_inference())
    return tuple((tensor, tensor._version) for tensor in tensors)


def _copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    own_args, own_kwargs = cloned((args, kwargs))
    return Sample(own_args, own_kwargs, _batch_size.get())


def _not_plain() -> str | None:
    """Return why a call in this context cannot be one of a graph; gradients do no harm here."""
    return next((reason for reason, holds in PLAIN if not holds()), None)
