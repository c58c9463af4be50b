"""Calls and answers as a contract suite needs them: other ways to make a call, and whether two answers agree."""

from __future__ import annotations

from typing import Any

import torch

from aitune.torch.graph.sample import Sample
from aitune.torch.graph.tree import Structure, flatten, path_text

__all__ = ["mismatch", "strided", "tensors_of"]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value, in order."""
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def strided(sample: Sample) -> Sample:
    """Return the same call with tensors that are not contiguous: transposed ones, slices, and expanded ones."""
    leaves, structure = flatten((sample.args, dict(sample.kwargs)))
    args, kwargs = structure.unflatten([_strided(one) if isinstance(one, torch.Tensor) else one for one in leaves])
    return Sample(args, kwargs, sample.batch_size)


def mismatch(got: Any, expected: Any, bound: float) -> str | None:
    """Return how an answer differs from the one that is expected, None if it does not.

    Structure, types, dtypes, devices, shapes, and everything that is no floating number must be the same.

    Args:
        got: The answer.
        expected: What it should be.
        bound: Relative L2 error that floating tensors may have, over the norm of the tensor; where that is small, over
            a hundredth of the largest of the answer.
    """
    leaves, structure = flatten(got)
    wanted, wanted_structure = flatten(expected)
    if structure != wanted_structure:
        return f"is structured as {_kinds(structure)}, expected is {_kinds(wanted_structure)}"
    floating = [one for one in wanted if isinstance(one, torch.Tensor) and one.is_floating_point()]
    scale = 0.01 * max((float(one.detach().double().norm()) for one in floating), default=0.0)
    for path, mine, theirs in zip(structure.paths(), leaves, wanted, strict=True):
        problem = _leaf_mismatch(mine, theirs, bound, scale)
        if problem is not None:
            return f"{path_text(path)} {problem}"
    return None


def _leaf_mismatch(got: Any, expected: Any, bound: float, scale: float) -> str | None:
    if not isinstance(expected, torch.Tensor):
        return None if type(got) is type(expected) and got == expected else f"is {got!r}, expected is {expected!r}"
    if not isinstance(got, torch.Tensor):
        return f"is a {type(got).__qualname__}, expected is a tensor"
    form, wanted = ((one.dtype, one.shape, one.device) for one in (got, expected))
    if form != wanted:
        return f"is {form}, expected is {wanted}"
    if not expected.is_floating_point():
        return None if torch.equal(got, expected) else "has other values"
    mine, theirs = got.detach().double(), expected.detach().double()
    error = float((mine - theirs).norm()) / max(float(theirs.norm()), scale, 1e-300)
    return None if error <= bound else f"is off by {error:.2g}, at most {bound:.2g} is allowed"


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    if tensor.dim() > 1 and tensor.shape[0] > 1 and tensor.shape[1] > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype, device=tensor.device)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def _kinds(structure: Structure) -> str:
    if structure.kind is None:
        return "a value"
    inside = ", ".join(f"{key}: {_kinds(child)}" for key, child in zip(structure.keys, structure.children, strict=True))
    return f"{structure.kind.__qualname__}({inside})"
