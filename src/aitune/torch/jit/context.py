"""Whether a call may be recorded, and a module may be served by an engine, given what surrounds it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from aitune.torch.jit.wrapped import is_wrapped
from aitune.torch.module.miss import has_hooks

__all__ = ["obstacle", "unfit_call", "wants_gradients"]


def unfit_call(  # noqa: PLR0911 - a table of reasons
    module: torch.nn.Module, *, inspecting: bool = False
) -> str | None:
    """Return why a call of a head is not looked at, None if it is.

    Args:
        module: The module.
        inspecting: Whether the call is only looked at, for which gradients, autocast and training do no harm.
    """
    if torch._C._get_tracing_state() is not None or torch.fx._symbolic_trace._is_fx_tracing_flag:
        return "tracing"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if torch._C._len_torch_dispatch_stack():
        return "a dispatch mode is active"
    if inspecting:
        return None
    if torch._C._is_any_autocast_enabled():
        return "autocast is active"
    if module.training:
        return "it is in training mode; call .eval() for inference"
    if torch.is_grad_enabled() and wants_gradients(module):
        return "gradients are enabled; run inference under torch.inference_mode() or torch.no_grad()"
    return None


def wants_gradients(module: torch.nn.Module) -> bool:
    """Whether a parameter of the module requires grad."""
    return any(parameter.requires_grad for parameter in module.parameters())


def obstacle(module: torch.nn.Module) -> str:
    """Return why no engine may stand in the place of a module, empty if one may."""
    if module.__dict__.get("_is_replica"):
        return "it is a replica of DataParallel"
    if has_hooks(module):
        return "hooks are registered on it or below it"
    for part in module.modules():
        if any(p is not None and not isinstance(p, torch.nn.Parameter) for p in part._parameters.values()):
            return "its parameters are swapped for the duration of this call"
        if part is not module and is_wrapped(part):
            return "a module below it was wrapped by ait.Module"
        if torch.nn.utils.parametrize.is_parametrized(part):
            return "a parameter below it is computed anew in every call (parametrization)"
    return ""
