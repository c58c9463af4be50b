"""What stands in front of the engines in a program that nobody adapted to them.

Calls that build a graph of gradients go to the original, since the program may be one that trains; and calls of sizes
that came later are recorded after a while, so that the module is tuned anew for them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.jit.config import jit_config
from aitune.torch.jit.context import wants_gradients
from aitune.torch.jit.history import History
from aitune.torch.jit.patched_module import PatchedModule
from aitune.torch.jit.record import recorded_call
from aitune.torch.module.handle import is_tuning_here
from aitune.torch.module.recording import Recording
from aitune.torch.module.slot import Slot, current
from aitune.torch.module.stats import Stats

__all__ = ["serve"]

_MISSES = 3
"""Calls that no engine was made for, before the module is tuned anew; four times as many each time after."""

_RETUNES = 3
"""Times that a module is tuned anew."""

_RECORDED = 4
"""Calls that are recorded then."""

_CURABLE = ("range", "structure", "value", "rank", "dtype", "type")
"""Reasons of misses that another tune can do something about."""

Widen = Callable[[PatchedModule, Recording], None]


def serve(
    node: PatchedModule, module: torch.nn.Module, recording: Recording, widen: Widen, history: History
) -> Callable[[], Stats]:
    """Put it in the slot of a module that was just tuned.

    Args:
        node: The module's node.
        module: The module; its slot holds the dispatcher's call.
        recording: The calls that it was tuned on.
        widen: Tunes it anew.
        history: Takes the steps.

    Returns:
        What tells where the calls went.
    """
    slot = Slot(module, None)
    call: Any = current(module)
    original, misses = slot.original, call.dispatcher.misses
    grad_enabled, wants = torch.is_grad_enabled, functools.partial(wants_gradients, module)
    limit = _MISSES * 4**node.retunes if node.retunes < _RETUNES else None
    recorded = itertools.count(1).__next__

    def engine_or_original(*args: Any, **kwargs: Any) -> Any:
        if grad_enabled() and wants():
            return original(*args, **kwargs)
        result = call(*args, **kwargs)
        if misses and limit is not None and current(module) is engine_or_original and _curable(misses) >= limit:
            history.add(f"Recording {node.title} again: {_curable(misses)} calls came that it was not tuned for")
            slot.install(record_again)
        return result

    def record_again(*args: Any, **kwargs: Any) -> Any:
        if (grad_enabled() and wants()) or is_tuning_here():
            return original(*args, **kwargs)
        result = recorded_call(recording, module, args, kwargs, failed)
        if recorded() == max(_RECORDED, jit_config.min_samples):
            slot.install(call)  # the engines serve on, while others are built
            try:
                widen(node, recording)
            except Exception as error:  # noqa: BLE001 - zero-code mode never breaks the host
                failed(error)
        return result

    def failed(error: Exception) -> None:
        slot.install(call)
        if jit_config.raise_failures:
            raise error
        history.add(f"{node.title} stays as it was tuned: {text_of(error)}")

    engine_or_original.dispatcher = call.dispatcher  # type: ignore[attr-defined]
    record_again.dispatcher = call.dispatcher  # type: ignore[attr-defined]
    slot.install(engine_or_original)
    read: Callable[[], Stats] = call.dispatcher.reader()
    return read


def _curable(misses: Any) -> int:
    return sum(misses.get(reason, 0) for reason in _CURABLE)
