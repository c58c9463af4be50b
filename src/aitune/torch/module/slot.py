"""The slot: the one place where calls of a module are taken over, and the only code that knows how.

``torch.nn.Module.__call__`` looks for ``_compiled_call_impl`` on the instance, which ``nn.Module.compile()`` sets. A
function put there sees every call; torch leaves it behind by itself on copy, deepcopy and pickle, so a copy of a tuned
module is a plain module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SLOT_NAME", "Slot"]

SLOT_NAME = "_compiled_call_impl"
"""Entry of a module that is the slot; what is in it changes nothing about what the module computes."""

Call = Callable[..., Any]


class Slot:
    """Takes over the calls of one module, and gives them back.

    Holds the module strongly; only functions that are installed in the slot, or short-lived work, may hold a slot.

    Args:
        module: The module.
        before: What was in the slot before aitune first took it (``nn.Module.compile()`` puts a function there).
    """

    def __init__(self, module: torch.nn.Module, before: Call | None) -> None:
        self.module = module
        self.before = before

    @property
    def original(self) -> Call:
        """What a call of the module runs without aitune: hooks and forward, or what the user compiled."""
        return self.before if self.before is not None else self.module._call_impl

    def install(self, function: Call) -> None:
        """Send every call from now on to ``function``. Atomic: a concurrent call gets the old or the new."""
        self.module.__dict__[SLOT_NAME] = function

    def remove(self) -> None:
        """Leave the module as it was before anything was installed."""
        if self.before is not None:
            self.module.__dict__[SLOT_NAME] = self.before
        else:
            self.module.__dict__.pop(SLOT_NAME, None)

    @property
    def installed(self) -> Call | None:
        """The function that calls go to now, None when it is not one of ours."""
        function = current(self.module)
        return None if function is self.before else function


def current(module: torch.nn.Module) -> Call | None:
    """Return whatever sits in the slot of a module."""
    return module.__dict__.get(SLOT_NAME)
