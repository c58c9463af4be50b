"""How calls of modules that nobody wrapped are seen, and how a decided module costs nothing (see docs/jit.md).

``nn.Module.__call__`` reads ``self._compiled_call_impl``. A function set on the class ``nn.Module`` sees every call of
every module, also of those that were made, copied or unpickled before; an entry on the instance hides it: ``None``
there is a call as without aitune, a function there is an engine or what ``nn.Module.compile()`` made. Torch leaves the
entry behind when a module is copied or pickled.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aitune.torch.module.slot import SLOT_NAME

__all__ = ["Interception"]

OnCall = Callable[..., Any]


class Interception:
    """Sends calls of modules to one function, and lets go of them. Safe for threads.

    Args:
        on_call: Takes a module and the call's arguments, answers the call; both it and everything that it calls must
            be ready for any thread.
    """

    def __init__(self, on_call: OnCall) -> None:
        self._on_call = on_call
        self._everywhere: Callable[..., Any] | None = None
        self._lock = threading.RLock()
        self._touched: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._suspended = 0

    @property
    def everywhere(self) -> bool:
        """Whether every module's calls are seen, apart from those let go."""
        return self._everywhere is not None

    def see_all(self) -> None:
        """See the calls of every module; calling it twice is allowed."""
        with self._lock:
            if self._everywhere is None:
                _hide_from_torchscript(True)
                self._everywhere = _class_function(self._on_call)
                self._show()

    def see(self, module: torch.nn.Module) -> None:
        """See the calls of one module, unless something else has its calls."""
        with self._lock:
            _hide_from_torchscript(True)
            if module.__dict__.get(SLOT_NAME) is None:
                module.__dict__[SLOT_NAME] = _Armed(weakref.ref(module), self._on_call)
                self._remember(module)

    def let_go(self, module: torch.nn.Module) -> None:
        """Let calls of a module run as without aitune, at no cost. An engine, or the user's compiled call, stays."""
        with self._lock:
            if not _is_free(module):
                return
            if self._everywhere is not None:
                module.__dict__[SLOT_NAME] = None
                self._remember(module)
            else:
                module.__dict__.pop(SLOT_NAME, None)

    def see_again(self, module: torch.nn.Module) -> None:
        """See the calls of a module that was let go."""
        with self._lock:
            if module.__dict__.get(SLOT_NAME, SLOT_NAME) is None:
                del module.__dict__[SLOT_NAME]
            if self._everywhere is None:
                self.see(module)

    def stop(self) -> None:
        """See no calls any more, and leave no entry on any module; calling it twice is allowed."""
        with self._lock:
            self._everywhere = None
            self._show()
            for reference in list(self._touched.values()):
                module = reference()
                if module is not None and _is_free(module):
                    module.__dict__.pop(SLOT_NAME, None)
            self._touched.clear()
            _hide_from_torchscript(False)

    def forget(self) -> None:
        """In a forked process, whose other threads stayed in the parent: see no calls any more."""
        self._lock = threading.RLock()  # one of those threads may have held it
        self._suspended = 0
        self.stop()

    @contextlib.contextmanager
    def only_marking(self) -> Iterator[None]:
        """Within the block, see nothing, and let go of every module that this thread calls.

        For aitune's own work: copies of a module that engines run on must not be taken for the program's, and what is
        timed must not be looked at.
        """
        thread = threading.get_ident()

        def pass_on(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return module._call_impl(*args, **kwargs)
            if threading.get_ident() == thread and SLOT_NAME not in module.__dict__:
                module.__dict__[SLOT_NAME] = None
                self._remember(module)
            return module._call_impl(*args, **kwargs)

        with self._lock:
            self._suspended += 1
            torch.nn.Module._compiled_call_impl = pass_on
        try:
            yield
        finally:
            with self._lock:
                self._suspended -= 1
                self._show()

    def _show(self) -> None:
        if not self._suspended:
            torch.nn.Module._compiled_call_impl = self._everywhere

    def _remember(self, module: torch.nn.Module) -> None:
        key = id(module)

        def forget(reference: weakref.ref[torch.nn.Module]) -> None:
            with self._lock:
                if self._touched.get(key) is reference:
                    del self._touched[key]

        if key not in self._touched or self._touched[key]() is not module:
            self._touched[key] = weakref.ref(module, forget)


class _Armed(functools.partial):  # type: ignore[type-arg]
    """The entry on a module whose calls are seen one by one. Holds no module."""

    def __new__(cls, module: weakref.ref[torch.nn.Module], on_call: OnCall) -> _Armed:
        return super().__new__(cls, _call_referenced, module, on_call)


def _call_referenced(module: weakref.ref[torch.nn.Module], on_call: OnCall, /, *args: Any, **kwargs: Any) -> Any:
    found: Any = module()  # whoever calls holds it
    if torch.compiler.is_compiling():
        return found._call_impl(*args, **kwargs)
    return on_call(found, *args, **kwargs)


def _class_function(on_call: OnCall) -> Callable[..., Any]:
    def seen(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # dynamo follows this line and no further
            return module._call_impl(*args, **kwargs)
        return on_call(module, *args, **kwargs)

    return seen


def _hide_from_torchscript(hidden: bool) -> None:
    """Have ``torch.jit.script`` pass over the entry, as it does over others that torch keeps on modules.

    It takes an entry that is no function for data of the module, and fails at the type that torch declares for it.
    """
    passed_over: list[str] = torch.jit._recursive.ignored_attributes
    if hidden and SLOT_NAME not in passed_over:
        passed_over.append(SLOT_NAME)
    elif not hidden and SLOT_NAME in passed_over:
        passed_over.remove(SLOT_NAME)


def _is_free(module: torch.nn.Module) -> bool:
    entry = module.__dict__.get(SLOT_NAME)
    return entry is None or isinstance(entry, _Armed)
