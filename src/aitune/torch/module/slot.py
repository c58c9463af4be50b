"""The slot: the one place where calls of a module are taken over, and the only code that knows how.

``torch.nn.Module.__call__`` looks for ``_compiled_call_impl`` on the instance, which ``nn.Module.compile()`` sets. A
function put there sees every call; torch leaves it behind by itself on copy, deepcopy and pickle, so a copy of a tuned
module is a plain module. Whoever copies the ``__dict__`` of a module by hand, as ``DataParallel`` does for its replicas
and ``nn.RNN`` for its pickles, takes it along: :func:`is_copy` tells, and :class:`_Left` keeps it out of pickles.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CALL_CODE", "SLOT_NAME", "Slot", "current", "is_copy", "is_ours", "its_own", "same_forward"]

SLOT_NAME = "_compiled_call_impl"
"""Entry of a module that is the slot; what is in it changes nothing about what the module computes."""
_OURS = "_aitune_slot"

Call = Callable[..., Any]


class _Left(functools.partial[Any]):
    """A function in the slot of a module that is pickled in its class's own way: its pickles have None in its place.

    Not for other modules: torch.jit.script takes nothing but functions there.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Reduce alike under every protocol."""
        return self.__reduce__()


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
        function.__dict__[_OURS] = True
        if _pickles_itself(type(self.module)):
            left = _Left(function)
            left.__dict__.update(function.__dict__)
            function = left
        self.module.__dict__[SLOT_NAME] = function

    def remove(self) -> None:
        """Leave the module as it was before anything was installed; what the user installed since is left."""
        if self.installed is None:
            return
        if self.before is not None:
            self.module.__dict__[SLOT_NAME] = self.before
        else:
            self.module.__dict__.pop(SLOT_NAME, None)

    def put_back(self, function: Call | None) -> None:
        """Put what :func:`current` returned earlier into the slot again."""
        if function is None:
            self.module.__dict__.pop(SLOT_NAME, None)
        else:
            self.module.__dict__[SLOT_NAME] = function

    @property
    def installed(self) -> Call | None:
        """The function that calls go to now, None when it is not one of ours."""
        function = current(self.module)
        return function if is_ours(function) else None


def current(module: torch.nn.Module) -> Call | None:
    """Return whatever sits in the slot of a module."""
    return module.__dict__.get(SLOT_NAME)


def is_ours(function: Call | None) -> bool:
    """Whether a function was put into a slot by :meth:`Slot.install`."""
    return bool(getattr(function, "__dict__", {}).get(_OURS, False))


def is_copy(module: torch.nn.Module, function: Call) -> bool:
    """Whether a module that is not the one of the slot took ``function`` along, as a replica does."""
    found = module.__dict__.get(SLOT_NAME)
    return found is function or getattr(found, "func", None) is function


def its_own(slot: Slot, function: Call) -> Call:
    """Return a function to install that sends calls of the slot's module to ``function``.

    Calls of a copy that took it along run that copy.
    """
    module, frame_of, compiling = slot.module, sys._getframe, torch.compiler.is_dynamo_compiling

    def call(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return function(*args, **kwargs)
        frame = frame_of(1)
        if frame.f_code is CALL_CODE and (owner := frame.f_locals["self"]) is not module and is_copy(owner, call):
            return owner._call_impl(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def _pickles_itself(kind: type) -> bool:
    """Whether a class of modules decides itself what goes into its pickles."""
    names = ("__getstate__", "__reduce__", "__reduce_ex__")
    return any(getattr(kind, name) is not getattr(torch.nn.Module, name) for name in names)


CALL_CODE = torch.nn.Module._wrapped_call_impl.__code__
"""The code that calls what is in a slot; its local ``self`` is the module that is called."""


def same_forward(module: torch.nn.Module, first: Any, second: Any) -> bool:
    """Whether two forwards found on the instance, None for none, run the same code on the same module."""

    def own(forward: Any) -> Any:
        bound = getattr(forward, "__self__", None) is module
        return None if bound and getattr(forward, "__func__", None) is type(module).forward else forward

    return own(first) is own(second)
