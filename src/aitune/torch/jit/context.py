"""Whether a call may be recorded, and a module may be served by an engine, given what surrounds it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from aitune.torch.jit.wrapped import is_wrapped
from aitune.torch.module.miss import has_hooks

__all__ = ["FOR_GRADIENTS", "IN_TRAINING", "is_traced", "obstacle", "unfit_call", "wants_gradients"]

IN_TRAINING = "it is in training mode; call .eval() for inference"
FOR_GRADIENTS = "gradients are enabled; run inference under torch.inference_mode() or torch.no_grad()"


def is_traced() -> bool:
    """Whether something watches every operation: even to ask a tensor for its size would become part of a trace."""
    return (
        torch._C._get_tracing_state() is not None
        or torch.fx._symbolic_trace._is_fx_tracing_flag
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


def unfit_call(module: torch.nn.Module) -> str | None:
    """Return why a call of a head is not recorded, None if it is."""
    if torch._C._is_any_autocast_enabled():
        return "autocast is active"
    if any(not isinstance(parameter, torch.nn.Parameter) for parameter in module.parameters()):
        return "its parameters are swapped for the duration of the call"
    if module.training:
        return IN_TRAINING
    if torch.is_grad_enabled() and wants_gradients(module):
        return FOR_GRADIENTS
    return None


def wants_gradients(module: torch.nn.Module) -> bool:
    """Whether a parameter of the module requires grad."""
    return any(parameter.requires_grad for parameter in module.parameters())


def obstacle(module: torch.nn.Module) -> str:
    """Return why no engine may stand in the place of a module, empty if one may."""
    if module.__dict__.get("_is_replica"):
        return "it is a replica of DataParallel"
    if module.training:
        return IN_TRAINING
    if has_hooks(module):
        return "hooks are registered on it or below it"
    for part in module.modules():
        if part is not module and is_wrapped(part):
            return "a module below it was wrapped by ait.Module"
    return ""
