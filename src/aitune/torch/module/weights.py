"""Noticing, at every call, that a module is no longer the one an engine was built from."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.graph.accessor import Names, compiled
from aitune.torch.module.drift import middle_word, objects_of
from aitune.torch.module.holdings import reachable, tensor_places

__all__ = ["ALWAYS", "CHUNK", "StateWatch"]

ALWAYS = 64
"""Up to this many state tensors are all looked at in every call (decision 14)."""
CHUNK = 32
"""Beyond ``ALWAYS``, how many buffers and tensor attributes are looked at in one call, in rotation; parameters are all
looked at in every call whatever their number, 60 ns each. And of how many tensors the memory is looked at."""
_INLINE = 256
_FEW, _PAIR = 8, 2
"""Modules with few tensors may be quick ones: of theirs, this many are read in one call."""

_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""What says, in a layer with adapters of PEFT, which of them count: merging writes through ``.data`` and tells nothing
else."""
_ADAPTED = "merged_adapters"
_PLAIN = (bool, int, float, str)
MOST_ATTRIBUTES = 16
"""How many plain attributes of the module itself are looked at in every call."""


@dataclass(frozen=True)
class _Tensor:
    """One parameter, buffer or tensor attribute as it was.

    Attributes:
        owner: The dict of the module, or the list or dict among its attributes, that holds it.
        key: Its name or index there.
        tensor: The object.
        version: Its version counter, None for an inference tensor, which has none.
        place: Its dtype and address, which a cast or a move changes without touching the version.
        parameter: Whether it is a parameter.
        memory: Its storage, kept so that no other tensor comes to lie at its address: a module that is cast there and
            back would be taken for the same.
    """

    owner: Any
    key: Any
    tensor: torch.Tensor
    version: int | None
    place: tuple[torch.dtype, int]
    parameter: bool
    memory: torch.UntypedStorage | None

    @property
    def changed(self) -> bool:
        """Whether it is another tensor, or has other contents, or lies elsewhere."""
        return _at(self.owner, self.key) is not self.tensor or self.spoiled

    @property
    def spoiled(self) -> bool:
        """Whether the tensor itself has other contents, or lies elsewhere, for good."""
        return _version(self.tensor) != self.version or _place(self.tensor) != self.place

    @property
    def kept(self) -> bool:
        """Whether it is still there, of the same kind, whatever its contents are."""
        there = _at(self.owner, self.key) is self.tensor and self.tensor.dtype is self.place[0]
        return there and self.memory is not None and self.memory.device == self.tensor.device

    def same(self, names: Names) -> str:
        """Return an expression that is true while neither identity nor version changed."""
        tensor = names.of(self.tensor, "tensor")
        same = f"{names.of(self.owner, 'owner')}[{_key(self.key, names)}] is {tensor}"
        return same if self.version is None else f"{same} and {tensor}._version == {self.version}"

    def unmoved(self, names: Names) -> str:
        """Return an expression that is true while dtype and address are what they were."""
        tensor = names.of(self.tensor, "tensor")
        dtype, address = self.place
        same = f"{tensor}.dtype is {names.of(dtype, 'dtype')}"
        return f"{same} and {tensor}.data_ptr() == {address}" if address else same

    def unwritten(self, names: Names) -> str:
        """Return an expression that is true while it lies where it did, with the same word in its middle."""
        address = self.place[1]
        same = f"{names.of(self.tensor, 'tensor')}.data_ptr() == {address}" if address else "True"
        word = middle_word(self.tensor)
        return same if word is None else f"{same} and {names.of(word, 'word')}.value == {word.value!r}"


@dataclass(frozen=True)
class _Child:
    """A child module as it was, or a parameter, buffer or child that was None.

    What replaces layers (adapters, pruning, quantization) replaces children.
    """

    owner: dict[str, Any]
    key: str
    child: torch.nn.Module | None

    @property
    def changed(self) -> bool:
        """Whether another one is in its place."""
        return self.owner.get(self.key, self) is not self.child

    def same(self, names: Names) -> str:
        """Return an expression that is true while it is there."""
        child = "None" if self.child is None else names.of(self.child, "child")
        return f"{names.of(self.owner, 'owner')}[{self.key!r}] is {child}"


@dataclass(frozen=True)
class _Switch:
    """A plain value, or a container of such, as it was."""

    owner: dict[str, Any]
    key: str
    value: Any

    @property
    def changed(self) -> bool:
        """Whether it has another value; a NaN is the same as long as it is the same object."""
        now = self.owner.get(self.key, self)
        return now is not self.value and bool(now != self.value)

    def same(self, names: Names) -> str:
        """Return an expression that is true while it has the value."""
        now, value = f"{names.of(self.owner, 'owner')}[{self.key!r}]", names.of(self.value, "value")
        return f"({now} is {value} or {now} == {value})"


@dataclass(frozen=True)
class _Object:
    """A function, settings or another object among the attributes, as it was."""

    owner: dict[str, Any]
    key: str
    value: Any

    @property
    def changed(self) -> bool:
        """Whether another one is in its place."""
        return self.owner.get(self.key, self) is not self.value

    def same(self, names: Names) -> str:
        """Return an expression that is true while it is there."""
        return f"{names.of(self.owner, 'owner')}.get({self.key!r}) is {names.of(self.value, 'value')}"


class StateWatch:
    """Remembers tensors, children and adapters of a module: identity, version, dtype and memory.

    Args:
        module: The module as it was when its engines were validated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = tuple(_tensors(module))
        self._first = next((entry.tensor for entry in self._tensors if entry.parameter), None)
        self._wants_grad = [self._first is not None and self._first.requires_grad]
        self._parts: tuple[_Child | _Switch | _Object, ...] = (
            *_children(module),
            *_attributes(module),
            *_switches(module),
        )

    @property
    def changed(self) -> bool:
        """Look at everything; for the slow path."""
        return any(part.changed for part in (*self._tensors, *self._parts))

    @property
    def spoiled(self) -> bool:
        """Whether a tensor itself changed: unlike one that was swapped for a while, it does not come back."""
        return any(entry.spoiled for entry in self._tensors)

    @property
    def rewritten(self) -> bool:
        """Whether every tensor, child and adapter is there as it was, whatever the contents of the tensors are."""
        return not any(part.changed for part in self._parts) and all(entry.kept for entry in self._tensors)

    def settle(self) -> None:
        """Take the present state of :meth:`untouched` for the usual one, after everything was looked at."""
        if self._first is not None:
            self._wants_grad[0] = self._first.requires_grad

    def untouched(self, names: Names) -> str:
        """Return an expression that is false when there is a reason to look at everything.

        It is about whether the first parameter wants gradients: adapters that are merged and unloaded between two calls
        leave that behind, and write the weights through ``.data``.
        """
        if self._first is None:
            return "True"
        return f"{names.of(self._first, 'tensor')}.requires_grad is {names.of(self._wants_grad, 'wants')}[0]"

    def condition(self, names: Names) -> str:
        """Return an expression for generated source that is true while no change shows.

        Identities and versions of parameters, and the children, are compared at every call; those of buffers and other
        tensors as well up to ``ALWAYS`` tensors, beyond that in rotation; dtype and memory of one tensor for each dtype
        and device, since a cast or a move takes them all.

        Args:
            names: Where the expression will find its objects.
        """
        firsts = {(entry.tensor.dtype, entry.tensor.device): entry for entry in reversed(self._tensors)}
        tests = [entry.unmoved(names) for entry in firsts.values()]
        always = self._tensors
        if len(always) > ALWAYS:
            always = tuple(entry for entry in self._tensors if entry.parameter)
            tests += _in_turn([entry.same for entry in self._tensors if not entry.parameter], CHUNK, names)
        same = [entry.same for entry in (*always, *self._parts)]
        if len(same) <= _INLINE:
            tests += [expression(names) for expression in same]
        else:
            tests += [f"{names.of(function, 'unchanged')}()" for function in _in_functions(same, _INLINE)]
        tests += _in_turn(
            [entry.unwritten for entry in self._tensors], _PAIR if len(self._tensors) <= _FEW else CHUNK, names
        )
        return " and ".join(tests) or "True"


def _in_turn(expressions: Sequence[Callable[[Names], str]], size: int, names: Names) -> list[str]:
    """Return an expression that looks at so many things in one call, and at the next ones in the next."""
    functions = _in_functions(expressions, size)
    return [f"{names.of(itertools.cycle(functions).__next__, 'turn')}()()"] if functions else []


def _in_functions(expressions: Sequence[Callable[[Names], str]], size: int) -> list[Callable[..., Any]]:
    """Return functions of so many expressions each; names of thousands in one would be slow to look up."""
    functions = []
    for start in range(0, len(expressions), size):
        scope = Names()
        tests = " and ".join(expression(scope) for expression in expressions[start : start + size])
        functions.append(compiled("unchanged", "", [f"return {tests}"], scope))
    return functions


def _tensors(module: torch.nn.Module) -> Iterator[_Tensor]:
    for owner, key, tensor, parameter in tensor_places(module):
        yield _Tensor(owner, key, tensor, _version(tensor), _place(tensor), parameter, _memory(tensor))


def _children(module: torch.nn.Module) -> Iterator[_Child]:
    for part in reachable(module):
        for key, child in part._modules.items():
            yield _Child(part._modules, key, child)
        for owner in (part._parameters, part._buffers):
            for key, value in owner.items():
                if value is None:
                    yield _Child(owner, key, None)


def _attributes(module: torch.nn.Module) -> list[_Switch | _Object]:
    """Return what a user may have set on the module itself; the training flag is a matter of the graph."""
    attributes = module.__dict__
    found: list[_Switch | _Object] = [
        _Switch(attributes, key, value)
        for key, value in attributes.items()
        if type(value) in _PLAIN and key not in ("training", "_is_full_backward_hook")
    ]
    found += [_Object(attributes, key, value) for key, value in objects_of(module).items()]
    return found[:MOST_ATTRIBUTES]


def _switches(module: torch.nn.Module) -> Iterator[_Switch]:
    for part in reachable(module):
        if _ADAPTED in part.__dict__:
            for key in _SWITCHES:
                if key in part.__dict__:
                    yield _Switch(part.__dict__, key, copy.copy(part.__dict__[key]))


def _at(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (KeyError, IndexError):
        return None


def _key(key: Any, names: Names) -> str:
    """Return the source of a key: a user's dict may have any."""
    return repr(key) if type(key) in (str, int) else names.of(key, "key")


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # no storage: lazy parameters, some subclasses
        return None


def _place(tensor: torch.Tensor) -> tuple[torch.dtype, int]:
    try:
        return tensor.dtype, tensor.data_ptr()
    except RuntimeError:  # no storage: lazy parameters, tensors on meta
        return tensor.dtype, 0
