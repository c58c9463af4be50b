"""Values as canonical bytes: equal values give equal bytes in every process, and what cannot be told apart is refused.

A key that misses a difference would hand out the wrong engine, so the rule is strict: a value whose whole state this
file knows how to reach is written, anything else raises :class:`UndigestibleError` with the path at which it was found.
Memory addresses, hashes and the order of sets never enter. Objects are numbered in the order in which they are met, so
that cycles end and sharing counts.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import logging
import operator
import pathlib
import re
import threading
import types
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import wrapt

__all__ = ["Canonical", "UndigestibleError", "Visit"]

_DEPTH = 300
_MOST = 5_000_000

_ATOMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: b"%x" % value if value >= 0 else b"-%x" % -value,
    float: lambda value: value.hex().encode(),
    complex: lambda value: f"{value.real.hex()},{value.imag.hex()}".encode(),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: value,
    type(Ellipsis): lambda _: b"",
    type(NotImplemented): lambda _: b"",
    torch.dtype: lambda value: str(value).encode(),
    torch.device: lambda value: str(value).encode(),
    torch.layout: lambda value: str(value).encode(),
    torch.memory_format: lambda value: str(value).encode(),
    torch.Size: lambda value: repr(tuple(value)).encode(),
    range: lambda value: repr(value).encode(),
    np.dtype: lambda value: _dtype(value).encode(),
}
# What a subclass is underneath, past methods that it may have overridden.
_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
_NUMBERS_OF_NUMPY = (np.bool_, np.integer, np.inexact)
_BY_REPR = (datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, bytearray)
_BY_REDUCTION = (
    type(vars(namedtuple("_", "x"))["x"]),  # the getter of a named tuple's field
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_MERE = (wrapt.ObjectProxy, wrapt.CallableObjectProxy)  # that pass everything on
_CALLS = (wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)
_WRAPPERS = (*_MERE, *_CALLS, wrapt.PartialCallableObjectProxy, *wrapt.CallableObjectProxy.__mro__[1:-1])
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType, *_WRAPPERS)


class UndigestibleError(ValueError):
    """A value has a part whose state cannot be read in full.

    Args:
        path: Where it is.
        reason: What it is.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


Visit = Callable[["Canonical", Any, str], bool]
"""Writes a value of a kind that it knows; returns False for any other, having written nothing."""


class Canonical:
    """Writes values into a digest.

    Args:
        visits: What knows further kinds of values, asked in order before the general rules.

    Attributes:
        tensors: The tensors that were met, whose values are left for the caller to digest.
    """

    def __init__(self, visits: Iterable[Visit] = ()) -> None:
        self._hash = hashlib.blake2b(digest_size=32)
        self._visits = tuple(visits)
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an object that goes would leave its address to another
        self._words: set[str] = set()
        self._depth = 0
        self._written = 0
        self.tensors: list[torch.Tensor] = []

    @property
    def digest(self) -> str:
        """The digest of all that was written."""
        return self._hash.hexdigest()

    def mark(self, kind: str, data: bytes = b"") -> None:
        """Write one item: a word that says what it is, and its bytes."""
        self._written += 1
        if self._written > _MOST:
            raise UndigestibleError("", "it has too many parts")
        self._hash.update(b"%s %d " % (kind.encode(), len(data)))
        self._hash.update(data)

    def write(self, value: Any, path: str) -> None:
        """Write a value.

        Args:
            value: Any value.
            path: Where it is, for messages.

        Raises:
            UndigestibleError: If its state cannot be read in full.
        """
        kind = type(value)
        if kind in _ATOMS or isinstance(value, np.dtype):
            self.mark(_name(kind), _ATOMS.get(kind, _ATOMS[np.dtype])(value))
            return
        self._depth += 1
        try:
            if self._depth > _DEPTH:
                raise UndigestibleError(path, "it is nested too deeply")
            self._write_object(value, path)
        finally:
            self._depth -= 1

    def known(self, value: Any) -> bool:
        """Whether an object was written before; then its number is written. Else it gets one."""
        number = self._numbers.get(id(value))
        if number is not None:
            self.mark("again", b"%d" % number)
            return True
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return False

    def first(self, word: str) -> bool:
        """Whether a word is asked about for the first time, for what needs to be written once."""
        before = len(self._words)
        self._words.add(word)
        return len(self._words) > before

    def separate(self, value: Any, path: str) -> bytes:
        """Return the digest of a value on its own, for members of sets, which have no order."""
        other = Canonical(self._visits)
        other._depth = self._depth
        other.write(value, path)
        if other.tensors:
            raise UndigestibleError(path, "a tensor in a set")
        self._alive.append(other)
        return other._hash.digest()

    def items(self, pairs: Iterable[tuple[Any, Any]], path: str) -> None:
        """Write keys with their values, in order."""
        for key, value in pairs:
            self.write(key, f"{path}[a key]")
            self.write(value, f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[…]")

    def attributes(self, pairs: Iterable[tuple[str, Any]], path: str) -> None:
        """Write attributes by name, sorted: their order has no meaning."""
        for name, value in sorted(pairs, key=lambda pair: pair[0]):
            self.mark("name", name.encode())
            self.write(value, f"{path}.{name}" if path else name)

    def _write_object(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in _LOCKS:
            self.mark("lock")  # whether it is held says nothing about results
            return
        if issubclass(kind, _PROXIES):
            self._write_behind(value, path)
            return
        if kind in (tuple, slice):
            parts = value if kind is tuple else (value.start, value.stop, value.step)
            self.mark(_name(kind), b"%d" % len(parts))
            for index, part in enumerate(parts):
                self.write(part, f"{path}[{index}]")
            return
        if kind in (set, frozenset):
            self.mark("set", b"".join(sorted(self.separate(member, path) for member in value)))
            return
        if self.known(value):
            return
        if any(visit(self, value, path) for visit in self._visits):
            return
        if not self._write_plain(value, path) and not self._write_state(value, path):
            raise UndigestibleError(path, f"a {_name(kind)}, whose state cannot be read")

    def _write_plain(self, value: Any, path: str) -> bool:
        """Write objects of types that everybody knows."""
        if isinstance(value, enum.Enum):
            self.mark("enum", str(value._name_).encode())
            self.write(type(value), f"{path}.__class__")
            self.write(value._value_, path)
        elif isinstance(value, (*_NUMBERS_OF_NUMPY, np.ndarray)):
            return self._write_numpy(value)
        elif isinstance(value, logging.Logger):
            self.mark("logger", value.name.encode())
        elif isinstance(value, weakref.ref):
            self.mark("weak")
            self.write(value(), path)
        elif type(value) in _BY_REPR or isinstance(value, pathlib.PurePath):
            self.mark(_name(type(value)), repr(value).encode("utf-8", "surrogateescape"))
        elif isinstance(value, re.Pattern):
            self.mark("pattern")
            self.write((value.pattern, value.flags), path)
        elif type(value) in _BY_REDUCTION:
            self.mark(_name(type(value)))
            self.write(value.__reduce__()[1:], path)
        elif type(value) is functools.partial:
            self.mark("partial")
            self.write(value.func, f"{path}.func")
            self.write(value.args, f"{path}.args")
            self.write(dict(value.keywords), f"{path}.keywords")
        elif isinstance(value, types.MappingProxyType):
            self.mark("mapping")
            self.items(value.items(), path)
        else:
            return False
        return True

    def _write_numpy(self, value: Any) -> bool:
        if value.dtype.hasobject or (isinstance(value, np.ndarray) and type(value) is not np.ndarray):
            return False
        self.mark("numpy", f"{type(value).__name__} {_dtype(value.dtype)}{value.shape}".encode())
        self.mark("values", np.ascontiguousarray(value).tobytes())
        return True

    def _write_behind(self, value: Any, path: str) -> None:
        """Write what a proxy stands for, and what a wrapper does to calls of it."""
        kind = type(value)
        try:
            target = value.__wrapped__ if issubclass(kind, _WRAPPERS) else value.__repr__.__self__
        except ReferenceError:
            target = None
        if kind in _CALLS:
            self.mark("wrapper")
            for name in ("_self_wrapper", "_self_instance", "_self_enabled"):
                self.write(getattr(value, name), f"{path}.{name}")
        elif issubclass(kind, _WRAPPERS) and kind not in _MERE and not kind.__module__.startswith("aitune."):
            raise UndigestibleError(path, f"a proxy of class {_name(kind)}, which may answer for itself")
        self.mark("proxy")
        self.write(target, path)

    def _write_state(self, value: Any, path: str) -> bool:
        """Write an object by its class, the content of a container that it derives from, and its attributes."""
        kind = type(value)
        base = _native_base(kind)
        if base is None or not _made_in_python(kind, base):
            return False
        self.mark("object")
        if kind not in (list, dict, collections.OrderedDict, collections.deque, collections.defaultdict):
            self.write(kind, f"{path}.__class__")
        else:
            self.mark("class", _name(kind).encode())
        if not self._write_content(value, base, path):
            return False
        self.attributes(_state(value), path)
        return True

    def _write_content(self, value: Any, base: type, path: str) -> bool:
        if base in _BARE:
            return True
        if issubclass(base, (list, tuple, collections.deque)):
            self.mark("items", b"%d" % base.__len__(value))
            for index, item in enumerate(base.__iter__(value)):
                self.write(item, f"{path}[{index}]")
        elif issubclass(base, dict):
            methods = collections.OrderedDict if issubclass(base, collections.OrderedDict) else dict
            self.mark("items", b"%d" % dict.__len__(value))
            if issubclass(base, collections.defaultdict):
                self.write(value.default_factory, f"{path}.default_factory")
            self.items(methods.items(value), path)
        elif issubclass(base, (set, frozenset)):
            self.mark("set", b"".join(sorted(self.separate(member, path) for member in base.__iter__(value))))
        elif base in _EXACT:
            self.mark("value", _ATOMS[base](_EXACT[base](value)))
        else:
            return False
        return True


def _dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype in full: of one with fields, ``str`` tells the size alone."""
    return dtype.str if dtype.names is None and dtype.subdtype is None else f"{dtype.str}{dtype!r}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_BARE = (object, types.SimpleNamespace)  # with nothing in them but attributes
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT, Python 3.11: the dict does not count in the size
_CONTAINERS = (list, dict, tuple, set, frozenset, collections.OrderedDict, collections.deque, collections.defaultdict)


def _native_base(kind: type) -> type | None:
    """Return the class written in C that an object's memory is laid out by, None if it is one that is not known."""
    for ancestor in kind.__mro__:
        if ancestor in _CONTAINERS or ancestor in _ATOMS or ancestor in _BARE:
            return ancestor
        if not ancestor.__flags__ & _HEAP_TYPE:
            return None
    return None


def _made_in_python(kind: type, base: type) -> bool:
    """Whether a class adds nothing to its native base but attributes and slots.

    Classes of extension modules hide state in memory of their own: they are larger than their attributes, or have
    instances without attributes at all.
    """
    if kind is base:
        return True
    slots = sum(len(_slots(ancestor)) for ancestor in kind.__mro__)
    dictionary = kind.__dictoffset__ != 0 and not kind.__flags__ & _MANAGED_DICT
    pointers = slots + dictionary + (kind.__weakrefoffset__ > 0)
    if kind.__basicsize__ > base.__basicsize__ + 8 * pointers:
        return False
    ours = [ancestor for ancestor in kind.__mro__ if ancestor.__flags__ & _HEAP_TYPE and ancestor not in _CONTAINERS]
    return kind.__dictoffset__ != 0 or all("__slots__" in vars(ancestor) for ancestor in ours)


def _slots(kind: type) -> tuple[str, ...]:
    named = vars(kind).get("__slots__", ())
    names = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _state(value: Any) -> list[tuple[str, Any]]:
    pairs = list(_vars(value).items())
    for ancestor in type(value).__mro__:
        for name in _slots(ancestor):
            mangled = f"_{ancestor.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            try:
                pairs.append((mangled, object.__getattribute__(value, mangled)))
            except AttributeError:
                continue  # a slot that was never filled
    return [(str(name), item) for name, item in pairs]


def _vars(value: Any) -> Mapping[str, Any]:
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}
