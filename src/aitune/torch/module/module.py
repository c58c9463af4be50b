"""``ait.Module``: what stands in for a module in the user's code."""

from __future__ import annotations

import copy
from typing import Any

import torch
import wrapt

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.declared import DynamicShapes
from aitune.torch.module.handle import Handle, find_handle
from aitune.torch.module.plan import Strategies
from aitune.torch.tune_strategy import TuneStrategy

__all__ = ["Module", "handle"]


class Module(wrapt.CallableObjectProxy[Any]):
    """Stand-in for a module: behaves as the module, and can be tuned.

    It is an instance of the module's class, has its attributes, parameters and methods, and can be a child of other
    modules. The module itself is not changed; engines live on it, so calling either is the same. Names that the module
    does not have are those of its :class:`~aitune.torch.module.handle.Handle`: ``name``, ``state``, ``tune()``,
    ``untune()``, ``stats`` and so on. Where the module has a name of its own, that wins, and
    ``ait.handle(model).name`` is the other.

    Args:
        module: The module, or another ``Module``, whose place this one takes with the new settings.
        name: Its name in reports; its class path if None. A number is added if another module has the name.
        strategy: How its graphs are tuned; None is ``MaxThroughputStrategy()``.
        strategies: One strategy for each graph, a sequence or a mapping by graph name; not together with ``strategy``.
        dynamic_shapes: Sizes of inputs that are validated and accepted, for example
            ``{"x": (BatchDim("batch", 1, 8), 3, DynamicDim("side", 224, 512), DynamicDim("side", 224, 512))}``.

    Raises:
        AITuneUserInputError: If an argument cannot be used; a ``ValueError``.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str | None = None,
        strategy: TuneStrategy | None = None,
        strategies: Strategies | None = None,
        dynamic_shapes: DynamicShapes | None = None,
    ) -> None:
        wrapped = unwrapped(module)
        super().__init__(wrapped)
        self._self_handle = Handle(wrapped, name, strategy, strategies, dynamic_shapes)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.__wrapped__, name)
        except AttributeError:
            if name.startswith("_") or (not hasattr(Handle, name) and name not in ("name",)):
                raise
            return getattr(self._self_handle, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.__wrapped__(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__wrapped__), *(name for name in dir(Handle) if not name.startswith("_"))})

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> Module:
        return _again(copy.copy(self.__wrapped__), dict(self._self_handle.settings()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return _again(copy.deepcopy(self.__wrapped__, memo), dict(self._self_handle.settings()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.__wrapped__, dict(self._self_handle.settings()))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Reduce alike under every protocol."""
        return self.__reduce__()


def handle(module: Any) -> Handle:
    """Return the handle of a wrapped module.

    Args:
        module: An ``ait.Module`` or the module that was wrapped.

    Raises:
        AITuneUserInputError: If it was not wrapped.
    """
    if isinstance(module, Handle):
        return module
    found = find_handle(unwrapped(module)) if isinstance(module, torch.nn.Module) else None
    if found is None:
        raise AITuneUserInputError(f"{type(module).__name__} is not wrapped; ait.Module(module) does that")
    return found


def unwrapped(module: Any) -> Any:
    """Return the module that an ``ait.Module`` stands for, and anything else as it is."""
    return module.__wrapped__ if type(module) is Module else module


def _again(module: torch.nn.Module, settings: dict[str, Any]) -> Module:
    return Module(module, **settings)
