"""Says why a function did not take what a dataset was turned into, where that can be told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader.batch import Batch
from aitune.torch.dataloader.description import describe
from aitune.torch.dataloader.factory import DataLoaderFactory

__all__ = ["explain_rejection"]


def explain_rejection(
    func: Callable[..., Any],
    batch: Batch,
    error: Exception,
    *,
    dataset: Any,
    retry: Callable[[], bool] | None = None,
) -> AITuneUserInputError | None:
    """Return an error that says how to change the dataset, for a call that the user's function rejected.

    Two mistakes are recognised: a tensor that already has a batch axis, passed as the dataset (one sample
    without one); and samples with an item more than the function takes, such as the label in ``(x, label)``.

    Args:
        func: The user's function or module.
        batch: The arguments that it was called with.
        error: What it raised.
        dataset: What the user passed as the dataset.
        retry: Tells whether ``func(dataset)`` runs, by running it. Called at most once, and only for a tensor
            dataset.

    Returns:
        The error, to be raised from `error`; None if the reason is another, so that `error` should be raised
        as it is.
    """
    if isinstance(dataset, torch.Tensor):
        has_rows = dataset.ndim > 0 and len(dataset) > 0
        return _second_batch_axis(dataset, batch) if has_rows and retry is not None and retry() else None
    if not isinstance(error, TypeError):
        return None
    taken, name = _positional_limit(func, batch, error)
    if taken is not None and taken < len(batch.args):
        return _extra_item(_name_of(func), taken, batch, dataset)
    if name is not None:
        return _extra_name(_name_of(func), name, batch, dataset)
    return None


def _second_batch_axis(dataset: torch.Tensor, batch: Batch) -> AITuneUserInputError:
    got = tuple(batch.args[0].shape) if batch.args else tuple(dataset.shape)
    return AITuneUserInputError(
        f"the dataset is a tensor of shape {tuple(dataset.shape)}, which stands for one sample without a "
        f"batch axis, so the function got shape {got} and failed; with the tensor as it is, it runs. Its "
        f"first axis is the batch axis already: pass [x[0]], or list(x) to use all its rows"
    )


def _positional_limit(func: Callable[..., Any], batch: Batch, error: TypeError) -> tuple[int | None, str | None]:
    """Return how many positional arguments are taken, and a keyword that is not; None where all is well."""
    try:
        signature = inspect.signature(_entry(func))
    except (TypeError, ValueError):  # builtins without a signature, and objects that lie about theirs
        return _limit_in(error, batch)
    try:
        signature.bind(*batch.args, **batch.kwargs)
    except TypeError:
        parameters = signature.parameters.values()
        kinds = [parameter.kind for parameter in parameters]
        positional = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        positional += kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = None if inspect.Parameter.VAR_POSITIONAL in kinds else positional
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return taken, None
        return taken, next((name for name in batch.kwargs if name not in signature.parameters), None)
    return _limit_in(error, batch)


def _limit_in(error: TypeError, batch: Batch) -> tuple[int | None, str | None]:
    """Read the same from Python's message, for functions that pass everything on to another one."""
    counted = re.search(r"takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) (?:was|were) given", str(error))
    if counted:
        takes, given = int(counted[1]), int(counted[2])
        own = given - len(batch.args)  # 1 for a method, which counts self
        if own in (0, 1):
            return takes - own, None
    named = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    return None, named[1] if named and named[1] in batch.kwargs else None


def _extra_item(function: str, taken: int, batch: Batch, dataset: Any) -> AITuneUserInputError:
    extra = batch.args[taken:]
    words = " and ".join(f"item {taken + i} ({describe(value)} in the batch)" for i, value in enumerate(extra))
    kept = "sample[0]" if taken == 1 else f"sample[:{taken}]"
    return AITuneUserInputError(
        f"{function} takes {taken} positional {'argument' if taken == 1 else 'arguments'} but the samples "
        f"hold {len(batch.args)} items: {words} {'is' if len(extra) == 1 else 'are'} not taken. A label? "
        + _remedy(dataset, f"[{kept} for sample in dataset]")
    )


def _extra_name(function: str, name: str, batch: Batch, dataset: Any) -> AITuneUserInputError:
    kept = f"[{{k: v for k, v in sample.items() if k != {name!r}}} for sample in dataset]"
    return AITuneUserInputError(
        f"{function} takes no argument {name!r}, which the samples hold ({describe(batch.kwargs[name])} in "
        f"the batch). A label? " + _remedy(dataset, kept)
    )


def _remedy(dataset: Any, mapped: str) -> str:
    if isinstance(dataset, DataLoader):
        return "Give the DataLoader a dataset or a collate_fn that leaves it out"
    if isinstance(dataset, DataLoaderFactory):
        return "Give the DataLoaderFactory a dataset or a collate_fn that leaves it out"
    return f"Leave it out of the dataset: {mapped}"


def _entry(func: Callable[..., Any]) -> Callable[..., Any]:
    return func.forward if isinstance(func, torch.nn.Module) else func


def _name_of(func: Callable[..., Any]) -> str:
    if isinstance(func, torch.nn.Module):
        return f"{type(func).__name__}.forward"
    return str(getattr(func, "__qualname__", type(func).__name__))
