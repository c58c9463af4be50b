"""The signature of a forward: every legal form of one call becomes one set of arguments."""

from __future__ import annotations

import contextlib
import enum
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["CallForm", "CallSignature", "Omitted"]

_HARMLESS = (str(Path(torch.__file__).parent), contextlib.__file__)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Omitted(enum.Enum):
    """Stands for an argument that was left out of a call of a decorated forward."""

    OMITTED = "left out"

    def __repr__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CallForm:
    """How a call was written. Forms of one call mean the same, but a decorator around a forward may not take every one.

    Attributes:
        positional: How many arguments were positional.
        keywords: Names of the others.
    """

    positional: int
    keywords: tuple[str, ...]


@dataclass(frozen=True)
class CallSignature:
    """Parameters of a forward, without annotations, so that it pickles.

    Attributes:
        parameters: As in ``inspect.Signature``, ``self`` excluded.
    """

    parameters: tuple[inspect.Parameter, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> CallSignature:
        """Read the signature of a bound forward; one that cannot be read takes anything.

        Behind a decorator, what a default is nobody knows: it may fill in another value where an argument is left out.
        There every default is :attr:`Omitted.OMITTED`, so that left out and passed are two things.
        """
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            parameters = (
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            )  # type: ignore[assignment]
        plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        if _is_decorated(function):
            empty = inspect.Parameter.empty
            plain = [one if one.default is empty else one.replace(default=Omitted.OMITTED) for one in plain]
        return cls(tuple(plain))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return argument values by parameter name, defaults filled in.

        A ``*args`` parameter holds a tuple, a ``**kwargs`` parameter a dict.

        Raises:
            TypeError: If the call does not fit the signature, as calling the forward would.
        """
        bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def covering(self, form: CallForm, names: Collection[str]) -> CallForm:
        """Return the form with parameters that it leaves out and that must not take their defaults written as well."""
        positional, keywords = form.positional, list(form.keywords)
        for index, parameter in enumerate(self.parameters):
            name = parameter.name
            if name not in names or name in keywords or parameter.kind in _VARIADIC:
                continue
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                positional = max(positional, index + 1)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY or index >= positional:
                keywords.append(name)
        by_position = [p.name for p in self.parameters if p.kind in _POSITIONAL][:positional]
        return CallForm(positional, tuple(name for name in keywords if name not in by_position))

    def call(
        self, arguments: Mapping[str, Any], form: CallForm | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments of a call.

        Args:
            arguments: As :meth:`bind` returns them.
            form: How to write it; what the form leaves out takes its default. None writes everything, positional where
                possible.
        """
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self.parameters:
            value = arguments[parameter.name]
            if parameter.kind in _POSITIONAL:
                positional.append(value)
                keywords[parameter.name] = value
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                keywords.update(value)
        if form is None:
            names = [p.name for p in self.parameters if p.kind in _POSITIONAL]
            given = next((i for i, name in enumerate(names) if arguments[name] is Omitted.OMITTED), len(positional))
            later = (n for n, value in keywords.items() if n not in names[:given] and value is not Omitted.OMITTED)
            form = CallForm(given, tuple(later))
        return tuple(positional[: form.positional]), {name: keywords[name] for name in form.keywords}

    @property
    def var_keyword(self) -> str | None:
        """Name of the ``**kwargs`` parameter, None without one."""
        return next((p.name for p in self.parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)


def _is_decorated(function: Any) -> bool:
    """Whether something that may change arguments stands between a call and the parameters that are shown.

    Decorators of torch and of ``contextlib`` pass arguments as they are.
    """
    inner = getattr(function, "__func__", function)
    while (wrapped := getattr(inner, "__wrapped__", None)) is not None:
        code = getattr(inner, "__code__", None)
        if code is None or not code.co_filename.startswith(_HARMLESS):
            return True
        inner = wrapped
    return hasattr(inner, "__signature__")
