"""Recording a call so that nothing that goes wrong in the recording reaches the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aitune.torch.graph.tree import Structure, flatten
from aitune.torch.module.recording import Recording
from aitune.torch.module.slot import Slot

__all__ = ["recorded_call"]


class _Watched(Slot):
    """A slot whose original remembers how its call ended."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module, None)
        self.begun = False
        self.ended = False
        self.result: Any = None

    @property
    def original(self) -> Callable[..., Any]:
        """The module's own call, remembered."""
        return self._run

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.begun = True
        self.result = super().original(*args, **kwargs)
        self.ended = True
        return self.result


def recorded_call(
    recording: Recording,
    module: torch.nn.Module,
    args: Any,
    kwargs: Any,
    failed: Callable[[Exception], None],
    changed: Callable[[], None] | None = None,
) -> Any:
    """Call a module and record the call.

    Args:
        recording: Takes the call.
        module: The module.
        args: Positional arguments.
        kwargs: Keyword arguments.
        failed: Takes what was raised by the recording itself.
        changed: Called where the module put something into a container that it was passed, or took something out.

    Returns:
        What the module returns.

    Raises:
        BaseException: What the module raises, unchanged.
    """
    watched = _Watched(module)
    try:
        before = flatten((args, kwargs)) if changed is not None else None
        result = recording.call(watched, *args, **kwargs)
        if before is not None and changed is not None and _differ(before, flatten((args, kwargs))):
            changed()
        return result
    except Exception as error:
        if watched.begun and not watched.ended:
            raise  # the module's own
        failed(error)
    return watched.result if watched.ended else Slot(module, None).original(*args, **kwargs)


def _differ(before: tuple[list[Any], Structure], after: tuple[list[Any], Structure]) -> bool:
    """Whether containers hold other objects than before; tensors that were written to are the same objects."""
    pairs = zip(before[0], after[0], strict=False)
    return before[1] != after[1] or any(old is not new for old, new in pairs if isinstance(new, torch.Tensor))
