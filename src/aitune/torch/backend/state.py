"""The weights of a module by name, as engines take them over."""

from __future__ import annotations

import torch

__all__ = ["state_of"]


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer of a module, those that ``state_dict`` leaves out too, by each of its names."""
    return {
        name: tensor.detach()
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    }
