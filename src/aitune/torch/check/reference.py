"""The reference: what a module computes in a higher precision than its own."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.torch.check.expectation import as_numbers, expect
from aitune.torch.check.free_memory import free_bytes
from aitune.torch.check.inputs import Probe
from aitune.torch.check.outcome import Outcome, perform
from aitune.torch.check.precision import (
    higher_precision,
    own_precision,
    raised_copy,
    raised_sample,
    size_when_raised,
)
from aitune.torch.check.set_aside import SetAside
from aitune.torch.check.state import Snapshot, take_snapshot
from aitune.torch.check.structure import structure_mismatch
from aitune.torch.check.trace import calm
from aitune.torch.check.value import compare_exactly

__all__ = ["Reference", "eager_reference", "foreign", "make_reference", "matched"]

_SAME, _SAME_IN_HALF = 1e-4, 1e-2
"""Relative L2 error up to which the same module in two processes may differ, as with other numbers of threads."""
_ROOM = 1.5  # times the converted module: what else a run of it needs


@dataclass(frozen=True, eq=False)
class Reference:
    """Outcomes of a module's copy in higher precision; plain values, so that another process can make them.

    Attributes:
        kind: ``float64``, ``float32``, or ``eager`` where the module's own outcomes have to do.
        reason: Why it is eager, or eager for some calls; empty otherwise.
        outcomes: For each call its outcome, None where eager's own is the reference. Values of a float32
            module are kept in float32: the rounding is a thousandth of the tightest bound.
        rounding: Rounding unit of the reference's precision over that of the module's; 0 for eager.
        own: What the module itself did in the first of these calls where the reference was made, by which another
            process can tell whether that was the same module. Empty where nobody else will ask.
    """

    kind: str
    reason: str
    outcomes: tuple[Outcome | None, ...]
    rounding: float = 0.0
    own: tuple[Outcome, ...] = ()


def eager_reference(calls: int, reason: str) -> Reference:
    """Return the reference that stands for eager's own outcomes."""
    return Reference("eager", reason, (None,) * calls)


def matched(reference: Reference, eager: Sequence[Outcome]) -> Reference:
    """Return a reference made elsewhere for the first of these calls, eager where it is none of theirs."""
    outcomes = [
        outcome if outcome is not None and _disagreement(outcome, own) is None else None
        for outcome, own in zip((*reference.outcomes, *[None] * len(eager)), eager, strict=False)
    ]
    if not any(outcomes):
        return eager_reference(len(eager), reference.reason or "the one made elsewhere is of other calls")
    return Reference(reference.kind, reference.reason, tuple(outcomes), reference.rounding)


def foreign(reference: Reference, eager: Sequence[Outcome], precision: torch.dtype | None) -> str | None:
    """Return how the module that a reference was made of differs from the one at hand, None if it does not.

    A process that imports a module's code anew lacks what was replaced after the import: a forward, a function that it
    calls, a global variable.

    Args:
        reference: Made elsewhere.
        eager: What the module at hand did in the same calls.
        precision: Its own.
    """
    tolerance = _SAME_IN_HALF if precision in (torch.float16, torch.bfloat16) else _SAME
    for there, here in zip(reference.own, eager, strict=False):
        if there.drew or here.drew:
            continue
        differs = _disagreement(there, here)
        error = 0.0 if differs is not None else expect(here, there).error
        if differs is not None or not error <= tolerance:
            return differs or f"outputs differ by {error:.2g}"
    return None


def make_reference(
    module: torch.nn.Module,
    calls: Sequence[tuple[Probe, bool]],
    eager: Sequence[Outcome],
    *,
    aside: bool = False,
    time_limit: float | None = None,
) -> Reference:
    """Run a copy of a module in higher precision. Never raises on account of the copy.

    Args:
        module: The module; a deep copy is converted, which takes all side effects and is gone afterwards.
        calls: The inputs of each call, and whether the copy is put back to its first state before it.
        eager: What the module itself did in each call, with tensors of its own.
        aside: Let the module's own tensors leave the device while the copy is there, where nobody else uses them.
        time_limit: Seconds after which eager is the reference of the calls that are left; None for no limit.
    """
    if any(outcome.drew for outcome in eager):
        return eager_reference(len(calls), "the module draws random numbers")
    own = own_precision(module, [probe.sample for probe, _ in calls])
    target = higher_precision(own)
    if own is None or target is None:
        return eager_reference(len(calls), f"there is no precision above {_name(own)} to compute in")
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    needed = int(_ROOM * size_when_raised(module, target))
    if needed > free_bytes(device):
        return eager_reference(len(calls), f"a copy in {_name(target)} needs {needed >> 20} MiB, which are not free")
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    with _set_aside(module, calls, eager, wanted=aside and device.type == "cuda") as put:
        try:
            raised = raised_copy(module, target, put)
        except Exception as error:  # noqa: BLE001 - a user's class decides what copying does
            return eager_reference(len(calls), f"the module cannot be copied to {_name(target)}: {_sentence(error)}")
        try:
            outcomes, reason = _run(raised, calls, eager, target, deadline)
        finally:
            alive = weakref.ref(raised)
            del raised
            if alive() is not None:
                gc.collect()  # it has become part of a cycle
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if not any(outcomes):
        return eager_reference(len(calls), reason)
    rounding = torch.finfo(target).eps / torch.finfo(own).eps
    return Reference(_name(target), reason, tuple(outcomes), rounding)


@contextmanager
def _set_aside(
    module: torch.nn.Module, calls: Sequence[tuple[Probe, bool]], eager: Sequence[Outcome], *, wanted: bool
) -> Iterator[Callable[[torch.Tensor], None]]:
    """Yield what takes a tensor of the module off the device until the block is left."""
    if not wanted:
        yield lambda _: None
        return
    asked = [tensor for probe, _ in calls for tensor in probe.tensors.values()]
    answers = [value for outcome in eager for value in outcome.everything.values() if isinstance(value, torch.Tensor)]
    aside = SetAside(module, [*asked, *answers])
    try:
        yield aside.put
    finally:
        aside.bring_back()


def _run(
    raised: torch.nn.Module,
    calls: Sequence[tuple[Probe, bool]],
    eager: Sequence[Outcome],
    target: torch.dtype,
    deadline: float,
) -> tuple[list[Outcome | None], str]:
    """Run all calls; if nothing comes of it, again under another default dtype: forwards may create tensors."""
    stateful = any(outcome.state for outcome in eager)
    before = take_snapshot(raised) if stateful else Snapshot((), (), ())
    outcomes: list[Outcome | None] = []
    reason = ""
    for default in (torch.get_default_dtype(), target):
        before.restore()
        with _conditions(calls[0][0], default):
            attempt = _Attempt(raised.forward, before, target, deadline)
            outcomes, failed = attempt.run(calls, eager)
        reason = reason or failed
        if any(outcomes):
            return outcomes, failed
    return outcomes, reason


@dataclass(frozen=True)
class _Attempt:
    forward: Callable[..., Any]
    before: Snapshot
    target: torch.dtype
    deadline: float

    def run(self, calls: Sequence[tuple[Probe, bool]], eager: Sequence[Outcome]) -> tuple[list[Outcome | None], str]:
        outcomes: list[Outcome | None] = []
        reason, lost = "", False
        for (probe, reset), own in zip(calls, eager, strict=True):
            if reset:
                self.before.restore()
                lost = False
            found = None if lost else self._one(probe, own)
            if isinstance(found, str):
                reason = reason or found
                found, lost = None, True
                if not outcomes:  # what the first call cannot do, the others will not
                    return [None] * len(calls), reason
            outcomes.append(found)
        return outcomes, reason

    def _one(self, probe: Probe, own: Outcome) -> Outcome | str:
        """Return the outcome, or why there is none."""
        if time.monotonic() > self.deadline:
            return "the time for it was over"
        try:
            raised = replace(probe, sample=raised_sample(probe.sample, self.target))
            found = perform(self.forward, raised, self.before)
        except Exception as error:  # noqa: BLE001 - dtypes written into a forward, operators without such a kernel, memory
            return f"the module does not run in {_name(self.target)}: {_sentence(error)}"
        other = _disagreement(found, own)
        if other is not None:
            return f"it does not compute the same in {_name(self.target)}: {other}"
        return _narrowed(found, own)


@contextmanager
def _conditions(probe: Probe, default: torch.dtype) -> Iterator[None]:
    """Run without gradients and autocast, under a default dtype."""
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(calm())
        for kind in {"cpu", *(t.device.type for t in probe.tensors.values() if t.device.type in _AUTOCAST)}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if default is not before:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(default)
        yield


_AUTOCAST = frozenset({"cuda", "xpu"})


def _disagreement(found: Outcome, own: Outcome) -> str | None:
    """Return where the copy took another way than the module; its values say nothing then."""
    differs = structure_mismatch(found.structure, own.structure)
    mine, theirs = found.everything, own.everything
    if differs is not None or mine.keys() != theirs.keys():
        return differs or "other inputs or buffers are changed"
    for name, value in theirs.items():
        numbers, other = as_numbers(value), as_numbers(mine[name])
        if numbers is None or other is None:
            mismatch = compare_exactly(mine[name], value).mismatch
            if mismatch is not None:
                return f"{name} {mismatch}"
        elif numbers.shape != other.shape:
            return f"{name} has shape {list(other.shape)} instead of {list(numbers.shape)}"
    return None


def _narrowed(found: Outcome, own: Outcome) -> Outcome:
    """Return an outcome with tensors of its own, rounded to float32 where eager's are float32."""

    def one(value: Any, eager: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        narrow = isinstance(eager, torch.Tensor) and eager.dtype in (torch.float32, torch.complex64)
        return value.detach().to(eager.dtype, copy=True) if narrow else value.detach().clone()

    return replace(
        found,
        leaves=tuple(one(value, eager) for value, eager in zip(found.leaves, own.leaves, strict=True)),
        inputs={path: one(value, own.inputs[path]) for path, value in found.inputs.items()},
        state={path: one(value, own.state[path]) for path, value in found.state.items()},
    )


def _name(dtype: torch.dtype | None) -> str:
    return "int" if dtype is None else str(dtype).removeprefix("torch.")


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
