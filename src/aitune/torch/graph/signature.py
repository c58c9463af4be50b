"""The signature of a forward: every legal form of one call becomes one set of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CallSignature"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class CallSignature:
    """Parameters of a forward, without annotations, so that it pickles.

    Attributes:
        parameters: As in ``inspect.Signature``, ``self`` excluded.
    """

    parameters: tuple[inspect.Parameter, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> CallSignature:
        """Read the signature of a bound forward; one that cannot be read takes anything."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            parameters = (
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            )  # type: ignore[assignment]
        return cls(tuple(parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return argument values by parameter name, defaults filled in.

        A ``*args`` parameter holds a tuple, a ``**kwargs`` parameter a dict.

        Raises:
            TypeError: If the call does not fit the signature, as calling the forward would.
        """
        bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def call(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments that :meth:`bind` came from, in canonical form."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.parameters:
            value = arguments[parameter.name]
            if parameter.kind in _POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                kwargs.update(value)
        return tuple(args), kwargs

    @property
    def var_keyword(self) -> str | None:
        """Name of the ``**kwargs`` parameter, None without one."""
        return next((p.name for p in self.parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
