"""Values in words, as the errors about a dataset show them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

__all__ = ["describe", "type_name"]


def describe(value: object) -> str:
    """Return what a value is, never what it holds: ``Tensor of shape (2, 3) and dtype float32``."""
    if value is None:
        return "None"
    name = type_name(type(value))
    if isinstance(value, torch.Tensor):
        return f"{name} of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, np.ndarray):
        return f"{name} of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, Mapping):
        return f"{name} with the keys {', '.join(repr(key) for key in value) or '(none)'}"
    if isinstance(value, (tuple, list)):
        return f"{name} of {len(value)} {'item' if len(value) == 1 else 'items'}"
    return name


def type_name(kind: type) -> str:
    """Return the name of a type, with its module where that says more than the name: ``PIL.Image.Image``."""
    if kind.__module__ in {"builtins", "torch", "numpy", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
