"""The check that decides whether a call belongs to an engine, generated once as Python source.

Interpreting specs at every call would cost more than many engines save. One function with the forward's own parameters
holds all conditions as plain expressions, cheapest first; its answer is a function to run, or None for the original.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.modules.module as nn_module
from torch.autograd import forward_ad

from aitune.torch.config import config
from aitune.torch.graph.accessor import (
    Names,
    compiled,
    leaf_expressions,
    signature_source,
    structure_conditions,
)
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.spec import Constant, TensorSpec, Varying, same_constant
from aitune.torch.module.weights import StateWatch

__all__ = ["HOOKS", "PLAIN", "Route", "ambient", "apart", "compile_route", "global_hooks", "plain_context"]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where ``nn.Module`` keeps hooks; any of them not empty sends calls to the original."""

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


PLAIN: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("autocast", lambda: not _autocast_enabled()),
    ("torch.func transform", lambda: torch._C._functorch.peek_interpreter_stack() is None),
    # Not torch.compiler.is_compiling(), which is also true while another thread compiles; tracing by torch.export shows
    # as a dispatch mode.
    ("tracing", lambda: torch._C._get_tracing_state() is None),
    ("forward-mode differentiation", lambda: forward_ad._current_level < 0),
    ("dispatch mode", lambda: torch._C._len_torch_dispatch_stack() == 0),
)
"""Conditions on the context of a call that hold for every graph, each with the reason where it does not."""


def ambient() -> tuple[torch.dtype, int]:
    """Return what a forward takes from its surroundings without a word: default dtype, number of function modes."""
    return torch.get_default_dtype(), torch._C._len_torch_function_stack()


@dataclass(frozen=True)
class Route:
    """One graph with the function that serves it.

    Attributes:
        graph: Which calls.
        run: Takes the call as the user made it.
        watch: What must not have changed; None for an engine that reads the live weights.
        forward: The forward that was set on the instance when the graph was validated, None for the class's own.
        reads_memory: Whether the engine takes inputs as they lie in memory; the module itself does not.
        ambient: What :func:`ambient` was then.
    """

    graph: GraphSpec
    run: Callable[..., Any]
    watch: StateWatch | None
    forward: Any = None
    reads_memory: bool = True
    ambient: tuple[torch.dtype, int] = field(default_factory=ambient)


def compile_route(module: torch.nn.Module, routes: Sequence[Route], hooks_seen: list[int] | None) -> Callable[..., Any]:
    """Generate the check for all routes of a module.

    Args:
        module: The module.
        routes: At least one; all of one signature.
        hooks_seen: One entry, ``RemovableHandle.next_id`` when the module and everything below were last found to have
            no hooks; read at every call. None where hooks below the module do no harm.

    Returns:
        A function with the forward's parameters that returns the ``run`` of the first route that the call belongs to,
        or None. It raises TypeError for a call that does not fit the signature, and whatever a container among the
        arguments raises when it is looked into.
    """
    signature = routes[0].graph.signature
    names = Names(parameter.name for parameter in signature.parameters)
    parameters = signature_source(signature, names)
    common = _module_conditions(module, routes[0], names)
    if hooks_seen is not None:
        handle = names.of(torch.utils.hooks.RemovableHandle, "handle")
        common.append(f"{handle}.next_id == {names.of(hooks_seen, 'hooks_seen')}[0]")
    shared = routes[0].watch if all(route.watch is routes[0].watch for route in routes) else None
    if shared is not None:
        common += [shared.untouched(names), shared.condition(names)]  # one module, one state: look once for all routes
    body = [f"if {' and '.join(common)}:"]
    for route in routes:
        tests = [*structure_conditions(route.graph, names), *_leaf_conditions(route, names)]
        if route.watch is not None and shared is None:
            tests += [route.watch.untouched(names), route.watch.condition(names)]
        body += [f"    if {' and '.join(tests) or 'True'}:", f"        return {names.of(route.run, 'run')}"]
    body.append("return None")
    return compiled("route", parameters, body, names)


def global_hooks() -> list[Any]:
    """Return torch's containers of hooks for every module of the process."""
    return [getattr(nn_module, name) for name in _GLOBAL_HOOKS]


def plain_context(training: bool) -> list[tuple[str, Callable[[], bool]]]:
    """Return the conditions on the context of a call, each with the reason that holds where it is false.

    Args:
        training: The training flag that the graph was recorded with.
    """
    if training:
        return [*PLAIN, ("gradients enabled while training", lambda: not torch.is_grad_enabled())]
    return [*PLAIN, ("gradients enabled", lambda: config.grad_policy == "engine" or not torch.is_grad_enabled())]


def _module_conditions(module: torch.nn.Module, route: Route, names: Names) -> list[str]:
    training = route.graph.training
    state = names.of(module.__dict__, "state")
    tests = [f"{state}['training'] is {training}"]
    tests.append(f"{state}.get('forward') is {names.of(route.forward, 'forward')}")
    tests += [f"not {state}[{hooks!r}]" for hooks in HOOKS]
    tests += [f"not {names.of(hooks, 'hooks')}" for hooks in global_hooks()]
    tests.append(f"not {names.of(_autocast_enabled, 'autocast')}()")
    tests.append(f"{names.of(torch._C._functorch.peek_interpreter_stack, 'functorch')}() is None")
    tests.append(f"{names.of(torch._C._get_tracing_state, 'tracing')}() is None")
    tests.append(f"{names.of(torch._C._len_torch_dispatch_stack, 'modes')}() == 0")
    dtype, function_modes = route.ambient
    tests.append(f"{names.of(torch._C._len_torch_function_stack, 'function_modes')}() == {function_modes}")
    tests.append(f"{names.of(torch.get_default_dtype, 'default_dtype')}() is {names.of(dtype, 'dtype')}")
    tests.append(f"{names.of(forward_ad, 'forward_ad')}._current_level < 0")
    grad = names.of(torch.is_grad_enabled, "grad")
    if training:
        tests.append(f"not {grad}()")
    else:
        policy = names.of(config._values, "config")
        tests.append(f"({policy}['grad_policy'] == 'engine' or not {grad}())")
    return tests


def _leaf_conditions(route: Route, names: Names) -> list[str]:
    graph = route.graph
    tests: list[str] = []
    bound: dict[str, DynamicDim] = {}
    accesses = leaf_expressions(graph, names)
    for access in accesses:
        if isinstance(access.spec, TensorSpec):
            tests.append(_tensor_condition(access.expression, access.spec, names, bound))
            if route.reads_memory and access.spec.dtype.is_floating_point:
                tests.append(f"not {access.expression}.is_neg()")  # the imaginary part of a lazy conjugate
        elif isinstance(access.spec, Constant):
            tests.append(_constant_condition(access.expression, access.spec.value, names))
        elif isinstance(access.spec, Varying):
            tests.append(f"{names.of(type, 'type')}({access.expression}) is {names.of(access.spec.kind, 'kind')}")
        else:
            tests.append("False")
    if graph.mutates:
        tensors = [access.expression for access in accesses if isinstance(access.spec, TensorSpec)]
        tests.append(f"{names.of(apart, 'apart')}({', '.join(tensors)})")
    wanting = [
        f"{access.expression}.requires_grad"
        for access in accesses
        if isinstance(access.spec, TensorSpec) and (access.spec.dtype.is_floating_point or access.spec.dtype.is_complex)
    ]
    if wanting:
        tests.append(f"not ({names.of(torch.is_grad_enabled, 'grad')}() and ({' or '.join(wanting)}))")
    return tests


def apart(*tensors: torch.Tensor) -> bool:
    """Whether no two tensors share an allocation; where inputs are written to, the order of writes counts else."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len(places) == len(set(places))


def _tensor_condition(text: str, spec: TensorSpec, names: Names, bound: dict[str, DynamicDim]) -> str:
    value = text
    tests = []
    if not text.isidentifier():  # read a nested leaf once
        value = f"{names.prefix}x"
        tests.append(f"({value} := {text}) is not None")
    kind = f"{names.of(type, 'type')}({value})"
    tensor, parameter = names.of(torch.Tensor, "Tensor"), names.of(torch.nn.Parameter, "Parameter")
    tests.append(f"({kind} is {tensor} or {kind} is {parameter})")
    tests.append(f"{value}.dtype is {names.of(spec.dtype, 'dtype')}")
    tests.append(_shape_condition(value, spec, names, bound))
    if spec.device.type == "cpu":
        tests.append(f"{value}.is_cpu")
    else:
        tests.append(f"{value}.device == {names.of(spec.device, 'device')}")
    tests.append(f"{value}.layout is {names.of(torch.strided, 'strided')}")
    if spec.dtype.is_complex:
        tests.append(f"not {value}.is_conj()")
    return " and ".join(tests)


def _shape_condition(value: str, spec: TensorSpec, names: Names, bound: dict[str, DynamicDim]) -> str:
    if not any(isinstance(size, DynamicDim) for size in spec.shape):
        return f"{value}.shape == {tuple(spec.shape)}"
    shape = f"{names.prefix}s"
    tests = [f"{names.of(len, 'len')}({shape} := {value}.shape) == {len(spec.shape)}"]
    for axis, size in enumerate(spec.shape):
        if not isinstance(size, DynamicDim):
            tests.append(f"{shape}[{axis}] == {size}")
        elif size.name in bound:
            tests.append(f"{shape}[{axis}] == {names.prefix}d_{size.name}")
        else:
            variable = f"{names.prefix}d_{size.name}"
            tests.append(f"{size.min} <= ({variable} := {shape}[{axis}]) <= {size.max}")
            tests += _unit_conditions(size, names, bound)
            bound[size.name] = size
    return " and ".join(tests)


def _unit_conditions(size: DynamicDim, names: Names, bound: dict[str, DynamicDim]) -> list[str]:
    """Return the conditions that tie a dimension to the others of its unit."""
    if not size.unit:
        return []
    variable = f"{names.prefix}d_{size.name}"
    leader = next((dim for dim in bound.values() if dim.unit == size.unit), None)
    if leader is None:
        return [f"{variable} % {size.per_unit} == 0"] if size.per_unit > 1 else []
    return [f"{variable} * {leader.per_unit} == {names.prefix}d_{leader.name} * {size.per_unit}"]


def _constant_condition(text: str, value: Any, names: Names) -> str:
    if value is None or isinstance(value, bool):
        return f"{text} is {value}"
    if isinstance(value, (enum.Enum, type, types.FunctionType)):
        return f"{text} is {names.of(value, 'constant')}"
    if type(value) in (int, str) or (type(value) is float and value != 0 and math.isfinite(value)):
        return f"{names.of(type, 'type')}({text}) is {names.of(type(value), 'kind')} and {text} == {value!r}"
    return f"{names.of(same_constant, 'same')}({text}, {names.of(value, 'constant')})"


def _autocast_enabled() -> bool:
    return bool(torch._C._is_any_autocast_enabled())
