"""Functions, classes and modules as canonical bytes.

What runs decides, not what a source file says by now: functions are written by their code objects, with defaults and
the values that they close over. What is written beyond that depends on where code comes from. Functions of the user's
own modules are followed into the globals that they name. Those of torch, the standard library and installed packages
are not: their versions are in the key. Their classes are still looked at for methods that somebody replaced.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import inspect
import sys
import sysconfig
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aitune.torch.store.canonical import Canonical, UndigestibleError

__all__ = ["LIBRARIES", "is_library", "visit_code", "write_foreign"]

LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "torchgen", "numpy", "aitune", "functorch"}) - {"__main__"}
_NOT_STATE = frozenset(
    {
        "__slotnames__",  # what copyreg puts there when an instance is pickled for the first time
        "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__",
        "__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__parameters__",
        "__orig_bases__", "__abstractmethods__", "__slots__", "__type_params__", "_abc_impl",
        "__classcell__", "__conditional_annotations__",
    }
)  # fmt: skip
_MARKS = ("__pydantic_", "___")  # the latter is how torch._dynamo marks classes
_MAKERS = ("__init__", "__setstate__")  # of torch; wrapped by torch._dynamo, and not part of what a module computes
_ACCESSORS = (property, staticmethod, classmethod, functools.cached_property, functools.partialmethod)
_NATIVE = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip


def visit_code(out: Canonical, value: Any, path: str) -> bool:
    """Write a function, method, class, module or descriptor; see :data:`~aitune.torch.store.canonical.Visit`."""
    write = next((write for kinds, write in _WRITERS if isinstance(value, kinds)), None)
    if write is not None:
        write(out, value, path)
    elif type(value) is functools._lru_cache_wrapper:
        out.mark("cached")
        out.write(value.__wrapped__, path)
    elif isinstance(value, (types.GenericAlias, types.UnionType)) or type(value).__module__ == "typing":
        out.mark("annotation")  # says nothing about what is computed
    else:
        return False
    return True


def is_library(module: str | None) -> bool:
    """Whether a module belongs to torch, the standard library, aitune or an installed package, by its name."""
    if not module:
        return False
    top = module.partition(".")[0]
    if top in LIBRARIES and top not in sys.stdlib_module_names:
        return True
    return top != "__main__" and _installed(top)


@functools.cache
def _installed(top: str) -> bool:
    standard = top in sys.stdlib_module_names
    file = _file_of(top)
    if not file:
        return standard
    # A file of the user's may have a name of the standard library.
    names = ("stdlib", "platstdlib") if standard else ("purelib", "platlib")
    parts = Path(file).parts
    return any(Path(file).is_relative_to(sysconfig.get_path(name)) for name in names) or bool(
        {"site-packages", "dist-packages"} & {*parts}
    )


def _file_of(top: str) -> str | None:
    """Return the file, or folder, of a top-level module, also of one that is yet to be imported."""
    module = sys.modules.get(top)
    if module is not None:
        return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    spec = importlib.machinery.PathFinder.find_spec(top)
    return None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)


@functools.cache
def _version(top: str) -> str:
    """Return what changes when an installed package does: its list of files with their hashes, else its version.

    A version alone may stay while a package is installed again from another state of its source.
    """
    if top in LIBRARIES:
        return ""  # among the facts about the surroundings
    try:
        names = [importlib.metadata.distribution(top).name]
    except importlib.metadata.PackageNotFoundError:
        names = sorted({*importlib.metadata.packages_distributions().get(top, ())})
    texts = []
    for name in names:
        distribution = importlib.metadata.distribution(name)
        record = distribution.read_text("RECORD") or ""
        texts.append(f"{name} {distribution.version} {hashlib.blake2b(record.encode()).hexdigest()}")
    return ",".join(texts)


def _file_digest(module: str) -> str:
    """Return the digest of the file of an installed module, which somebody may have edited."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    try:
        return hashlib.blake2b(Path(file).read_bytes()).hexdigest() if file.endswith(".py") else ""
    except OSError:
        return ""


def _write_origin(out: Canonical, module: str | None, name: str) -> bool:
    """Write where something was defined; return whether that is a library, whose version is then written too."""
    out.mark("defined", f"{module}:{name}".encode())
    if module is None or not is_library(module):
        return False
    top = module.partition(".")[0]
    if top not in LIBRARIES and out.first(module):
        out.mark("package", _version(top).encode())
        out.mark("file", _file_digest(module).encode())
    return True


def _write_generator(out: Canonical, generator: types.GeneratorType[Any, Any, Any], path: str) -> None:
    """Write a generator that was not begun, as context managers that are used as decorators hold one."""
    if inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
        raise UndigestibleError(path, "a generator that was begun")
    out.mark("generator")
    _write_code(out, generator.gi_code, path)
    assert generator.gi_frame is not None  # it was not begun
    out.attributes(generator.gi_frame.f_locals.items(), path)


def _is_of(module: str | None, function: types.FunctionType) -> bool:
    """Whether a function looks its globals up in the module that they name: code made at run time may not."""
    return module in sys.modules and function.__globals__ is vars(sys.modules[module])


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _write_function(out: Canonical, function: types.FunctionType, path: str) -> None:
    module = function.__globals__.get("__name__")  # not __module__, which a decorator copies from what it decorates
    library = _write_origin(out, module, function.__qualname__) and _is_of(module, function)
    _write_code(out, function.__code__, path)
    out.write(function.__defaults__, f"{path}.__defaults__")
    out.write(function.__kwdefaults__ and dict(function.__kwdefaults__), f"{path}.__kwdefaults__")
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        out.mark("closes over", name.encode())
        if _is_filled(cell):
            out.write(cell.cell_contents, f"{path}:{name}")
    extra = {name: item for name, item in vars(function).items() if name != "__wrapped__" and not name.startswith("__")}
    if library:
        return
    out.attributes(extra.items(), path)
    use = _Use(tuple(_global_names(function.__code__)))
    for name in use.names:
        if name in function.__globals__:
            _write_global(out, name, function.__globals__[name], use, path)
    for name in sorted(_imported_names(function.__code__)):
        _write_import(out, name, str(function.__globals__.get("__package__") or ""), use, path)


@dataclass(frozen=True)
class _Use:
    """A function that names globals.

    Attributes:
        names: Every name that its code looks up.
        entered: Modules in which they were looked up already.
    """

    names: tuple[str, ...]
    entered: frozenset[str] = frozenset()


def _write_global(out: Canonical, name: str, value: Any, use: _Use, path: str) -> None:
    out.mark("global", name.encode())
    if not isinstance(value, types.ModuleType) or is_library(value.__name__):
        out.write(value, f"{path}:{name}")
        return
    out.mark("module", value.__name__.encode())
    if not (getattr(value, "__file__", None) or ".py").endswith((".py", ".pyc")):
        raise UndigestibleError(f"{path}:{name}", f"an extension module, {value.__name__}")
    if value.__name__ in use.entered:
        return
    within = _Use(use.names, use.entered | {value.__name__})
    for attribute in use.names:  # more than needed: the code does not tell which of them belong to this module
        if attribute in vars(value):
            _write_global(out, attribute, vars(value)[attribute], within, f"{path}:{name}")


def _write_import(out: Canonical, name: str, package: str, use: _Use, path: str) -> None:
    """Write what is used of a module that a function imports as it runs; a relative name is tried at every level."""
    parents = [package.rsplit(".", level)[0] for level in range(package.count(".") + 1)] if package else []
    names = [*([name] if name else []), *(f"{parent}.{name}".rstrip(".") for parent in parents)]
    for found in names:
        if is_library(found):
            continue
        if found in sys.modules:
            _write_global(out, found, sys.modules[found], use, path)
        elif found == name and not any(other in sys.modules for other in names) and _is_findable(name):
            raise UndigestibleError(path, f"a function that imports {name} as it runs, which was not imported yet")


def _is_findable(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.modules or importlib.machinery.PathFinder.find_spec(top) is not None


def _imported_names(code: types.CodeType) -> set[str]:
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _imported_names(constant)
    return names


def _global_names(code: types.CodeType) -> list[str]:
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return sorted(names)


def _write_code(out: Canonical, code: types.CodeType, path: str) -> None:
    """Write a code object without file and line numbers."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    out.mark("code", f"{code.co_name}{counts}".encode())
    out.mark("instructions", code.co_code)
    out.mark("handlers", getattr(code, "co_exceptiontable", b""))
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        out.mark("names", "\0".join(names).encode())
    out.mark("constants", b"%d" % len(code.co_consts))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _write_code(out, constant, path)
        else:
            out.write(constant, path)


def _write_class(out: Canonical, kind: type, path: str) -> None:
    library = _write_origin(out, kind.__module__, kind.__qualname__)
    if not kind.__flags__ & (1 << 9):  # written in C
        if not library:
            raise UndigestibleError(path, f"a class of an extension module, {kind.__module__}.{kind.__qualname__}")
        return
    for ancestor in (*kind.__mro__[1:], type(kind)):
        if ancestor not in (object, type):
            out.write(ancestor, path)
    for name, item in sorted(vars(kind).items()):
        if name in _NOT_STATE or name.startswith(_MARKS) or (kind.__module__.startswith("torch.") and name in _MAKERS):
            continue
        if library:
            item = None if _is_interception(name, item) else item  # noqa: PLW2901 - as it is without aitune
            _write_replaceable(out, name, item, f"{path}.{name}")
        else:
            out.mark("name", name.encode())
            out.write(item, f"{path}.{name}")


def _is_interception(name: str, item: Any) -> bool:
    """Whether it is what just-in-time tuning sees calls by, which is no part of what a module computes."""
    return name == "_compiled_call_impl" and str(getattr(item, "__module__", "")).startswith("aitune.")


def _write_replaceable(out: Canonical, name: str, item: Any, path: str) -> None:
    """Write an item of a library's class so that a replacement shows: code and plain values; others by their type."""
    out.mark("name", name.encode())
    if isinstance(item, (*_ACCESSORS, types.FunctionType)) or _is_plain(item) or _is_put_there(item):
        out.write(item, path)
    else:
        out.mark("type", f"{type(item).__module__}.{type(item).__qualname__}".encode())


def _is_put_there(item: Any) -> bool:
    """Whether something that is called in place of a method is no library's own: an object of the user's, a wrapper."""
    return (
        not isinstance(item, type)
        and callable(item)
        and (type(item) is functools.partial or not is_library(type(item).__module__))
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(item) for item in value)
    return type(value) in (bool, int, float, str, bytes, type(None))


def _write_accessor(out: Canonical, value: Any, path: str) -> None:
    out.mark(type(value).__name__)
    for name in ("fget", "fset", "fdel", "__func__", "func", "args", "keywords"):
        if hasattr(value, name):
            out.mark("name", name.encode())
            out.write(getattr(value, name), path)


def _write_module(out: Canonical, module: types.ModuleType, path: str) -> None:
    """Write a library's module by its name; what is used of a user's one is told by code that names it."""
    if not _write_origin(out, module.__name__, ""):
        raise UndigestibleError(path, f"a Python module that is held as a value, {module.__name__}")


def _write_native(out: Canonical, value: Any, path: str) -> None:
    owner = getattr(value, "__self__", None)
    kind = getattr(value, "__objclass__", None)
    module = getattr(value, "__module__", None) or getattr(kind, "__module__", None)
    out.mark("native", f"{module}:{getattr(value, '__qualname__', value.__name__)}".encode())
    if owner is not None and not isinstance(owner, types.ModuleType):
        out.write(owner, f"{path}.__self__")
    elif module and not is_library(module) and owner is None and kind is None:
        raise UndigestibleError(path, f"a function of an extension module, {module}")


def _write_method(out: Canonical, method: types.MethodType, path: str) -> None:
    out.mark("method")
    out.write(method.__func__, path)
    out.write(method.__self__, f"{path}.__self__")


def _write_cell(out: Canonical, cell: types.CellType, path: str) -> None:
    out.mark("cell")
    out.write(cell.cell_contents if _is_filled(cell) else None, path)


_WRITERS: tuple[tuple[Any, Callable[[Canonical, Any, str], None]], ...] = (
    (types.FunctionType, _write_function),
    (types.MethodType, _write_method),
    (types.CodeType, _write_code),
    (types.GeneratorType, _write_generator),
    (types.CellType, _write_cell),
    (type, _write_class),
    (types.ModuleType, _write_module),
    (_NATIVE, _write_native),
    (_ACCESSORS, _write_accessor),
)


def write_foreign(out: Canonical, function: Any, path: str) -> None:
    """Write a callable that was found in a library's module: one of another library by its code and version alone."""
    plain = type(function) is types.FunctionType
    module = function.__globals__.get("__name__") if plain else None
    if is_library(module) and is_library(function.__module__):
        _write_origin(out, module, function.__qualname__)
        _write_code(out, function.__code__, path)
    else:
        out.write(function, path)
