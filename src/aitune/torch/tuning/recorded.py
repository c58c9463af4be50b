"""Running the user's function on its dataset while the wrapped modules record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader import Batch, explain_rejection
from aitune.torch.events import Recorded, publish
from aitune.torch.graph.tree import flatten
from aitune.torch.module.handle import Handle, living
from aitune.torch.module.holdings import modules_in
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.tune_module import module_device
from aitune.torch.tuning.request import Request

__all__ = ["Calls", "find_handles", "record"]


@dataclass(frozen=True)
class Calls:
    """What running the function showed.

    Attributes:
        recordings: Of every wrapped module that was called, in the order in which they were wrapped.
        batches: One batch of every size, for timing the whole function.
    """

    recordings: tuple[tuple[Handle, Recording], ...]
    batches: tuple[Batch, ...]


def record(request: Request, expired: Callable[[], bool]) -> Calls:
    """Run the function on every batch, and record what the wrapped modules are called with.

    Modules, random state and slots are as before afterwards.

    Args:
        request: What was asked for; its ``source`` is not None.
        expired: Tells whether time is up; at least one batch is run.

    Raises:
        AITuneUserInputError: If the dataset is at fault or the function calls no wrapped module.
        Exception: What the function raises on its own account, as it is.
    """
    assert request.source is not None
    known = living()
    if not known:
        raise AITuneUserInputError("no module is wrapped: model = ait.Module(model) makes one tunable")
    kept: dict[int | None, Batch] = {}
    with contextlib.ExitStack() as stack:
        sessions = [(handle, stack.enter_context(handle.recording())) for handle, _ in known]
        for number, batch in enumerate(request.source.batches()):
            placed = on_device_of(request.module, batch)
            kept.setdefault(batch.size, placed)
            with batch_of(batch.size):
                _run(request, placed)
            publish(Recorded(number + 1, batch.size))
            if expired():
                break
    called = tuple((handle, recording) for handle, recording in sessions if recording.calls)
    if not called:
        raise AITuneUserInputError(_uncalled(request, sessions))
    return Calls(called, tuple(kept.values()))


def _uncalled(request: Request, sessions: list[tuple[Handle, Recording]]) -> str:
    for handle, recording in sessions:
        if recording.not_recorded:
            reasons = ", ".join(f"{reason} ({count} calls)" for reason, count in recording.not_recorded.items())
            return f"{handle.name} was called, but in no way that can be recorded: {reasons}"
    names = ", ".join(handle.name for handle, _ in sessions)
    if request.module is not None:
        return (
            f"{type(request.module).__name__} is not wrapped and calls no wrapped module; wrapped are: {names}."
            " model = ait.Module(model) makes it tunable"
        )
    return f"func called no wrapped module; wrapped are: {names}"


def _run(request: Request, batch: Batch) -> None:
    try:
        with torch.no_grad():
            request.func(*batch.args, **batch.kwargs)
    except Exception as error:  # the user's function may raise anything
        advice = explain_rejection(
            request.func, batch, error, dataset=request.dataset, retry=lambda: _runs_bare(request)
        )
        if advice is None:
            raise
        raise advice from error


def _runs_bare(request: Request) -> bool:
    """Whether the function takes a tensor dataset as it is, without a batch axis added."""
    bare = on_device_of(request.module, Batch((request.dataset,)))
    try:
        with torch.no_grad():
            request.func(*bare.args)
    except Exception:  # noqa: BLE001 - the user's function may raise anything
        return False
    return True


def on_device_of(module: torch.nn.Module | None, batch: Batch) -> Batch:
    """Return the batch with its tensors where the module is; as it is without a module.

    What a plain function does with its arguments is its own business, so nothing is moved for one.
    """
    if module is None:
        return batch
    device = module_device(module)
    leaves, structure = flatten((batch.args, batch.kwargs))
    if all(not isinstance(leaf, torch.Tensor) or leaf.device == device for leaf in leaves):
        return batch
    moved = [leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = structure.unflatten(moved)
    return Batch(args, kwargs, batch.size)


def find_handles(func: Any) -> tuple[Handle, ...]:
    """Return the handles of wrapped modules that an object is or holds, in the order in which they were wrapped.

    Looks into modules, attributes, sequences and mappings, a few levels deep.
    """
    inside = {id(module) for found in modules_in(func, 4) for module in found.modules()}
    return tuple(handle for handle, module in living() if id(module) in inside)
