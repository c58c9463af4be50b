"""Which modules are looked through: not intercepted themselves, while what is below them is."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch

__all__ = ["BUILT_IN", "why_excluded", "why_transparent"]

BUILT_IN = MappingProxyType(
    {
        "torch._dynamo": "torch.compile stands there: the user has chosen a compiler already",
        "torch.jit": "TorchScript: its calls run in its own interpreter, and exporters cannot follow them",
        "torch.nn.parallel": "it spreads calls over devices and reduces gradients; the module in it counts",
        "torch.distributed": "it gathers and frees the parameters of what it wraps around every call",
        "torch.ao.nn": "quantised already, by operators that no exporter knows",
        "torch.ao.quantization": "observers and fake quantisation have to see every call",
        "torch.nn.utils.parametrize.ParametrizationList": "part of whatever reads the parameter",
        "torch.nn.utils.parametrizations": "part of whatever reads the parameter",
        "torch.nn.modules.loss": "losses belong to training",
        "torchmetrics": "metrics gather state from call to call",
        "deepspeed": "it swaps parameters in and out around every call",
    }
)
"""Package prefix or full class name, with the reason."""

_CONTAINERS = ("torch.nn.modules.container",)


def why_excluded(module: torch.nn.Module, extra: Sequence[str]) -> str | None:
    """Return why a module is not intercepted, None if it is.

    Args:
        module: The module.
        extra: ``jit_config.patch_exclude``.
    """
    for kind in type(module).__mro__:
        if kind is torch.nn.Module:
            break
        path = f"{kind.__module__}.{kind.__qualname__}"
        for prefix, reason in BUILT_IN.items():
            if _below(path, prefix):
                return reason
        # only the class itself: a class that the user derived from an excluded one is another class
        if kind is type(module):
            for prefix in extra:
                if _below(path, prefix):
                    return f"{prefix} is in patch_exclude"
    return None


def why_transparent(module: torch.nn.Module, parameters: int) -> str | None:
    """Return why a module that another one calls is no level of the hierarchy, None if it is one.

    Args:
        module: The module, not called by the user's code.
        parameters: How many it has.
    """
    home = type(module).__module__
    if home in _CONTAINERS:
        return "a container only holds the parts of the module that it is in"
    if parameters == 0 and home.startswith("torch.nn.modules."):
        return "a layer of torch without weights has nothing to gain alone"
    return None


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}.")
