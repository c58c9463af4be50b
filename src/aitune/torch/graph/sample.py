"""A sample: the inputs of one recorded call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from aitune.torch.graph.tree import flatten

__all__ = ["Sample", "cloned"]


@dataclass(frozen=True)
class Sample:
    """Inputs of one call as it was written, owned by aitune and never handed out without a copy.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        batch_size: Number of samples in the call where that is known.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None

    def fresh(self) -> Sample:
        """Return a copy with tensors of its own, for a call that may change its inputs."""
        args, kwargs = cloned((self.args, dict(self.kwargs)))
        return Sample(args, kwargs, self.batch_size)


def cloned(value: Any) -> Any:
    """Copy a nested value, every tensor detached and cloned, other leaves as they are.

    Tensors that are one object, or views of one memory, in ``value`` stay one object in the copy only if they are one
    object; a view becomes a tensor of its own with the same strides where those do not overlap.
    """
    leaves, structure = flatten(value)
    copies: dict[int, torch.Tensor] = {}
    fresh: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in copies:
                # not an inference tensor, under whichever mode the call was made: builders cannot use those
                with torch.inference_mode(False), torch.no_grad():
                    copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad and leaf.is_leaf)
            fresh.append(copies[id(leaf)])
        else:
            fresh.append(leaf)
    return structure.unflatten(fresh)
