"""The strategy of just-in-time tuning: the default of each device, and strategies written as text."""

from __future__ import annotations

import re
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch import tune_strategy
from aitune.torch.backend import (
    TensorRTBackend,
    TensorRTBackendConfig,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorJitBackend,
)
from aitune.torch.backend.guarded import described
from aitune.torch.backend.registry import backend_by_name
from aitune.torch.measure import ProfilingConfig
from aitune.torch.tune_strategy import FirstWinsStrategy, TuneStrategy

__all__ = ["candidates", "default_strategy", "strategy_of"]

_QUICK = ProfilingConfig(settle_seconds=10.0, max_seconds=30.0)
"""Somebody waits in the middle of a program."""

_WRITTEN = re.compile(r"(?P<name>\w+)\s*(\((?P<backends>[^()]*)\))?\s*")


def default_strategy(device: torch.device) -> TuneStrategy:
    """Return how a module on a device is tuned where ``jit_config.strategy`` is None."""
    if device.type != "cuda":
        return FirstWinsStrategy(profiling_config=_QUICK)
    return FirstWinsStrategy(
        profiling_config=_QUICK,
        backends=[
            TensorRTBackend(TensorRTBackendConfig(use_dynamo=True)),
            TensorRTBackend(TensorRTBackendConfig(use_dynamo=False)),
            TorchInductorJitBackend(),
            TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True)),
        ],
    )


def candidates(strategy: TuneStrategy, device: torch.device) -> str:
    """Return a strategy with its candidates in a few words."""
    names = [described(backend) for backend in strategy.candidates(device)]
    return f"{type(strategy).__name__}: {', '.join(names)}" if names else strategy.describe()


def strategy_of(text: str) -> TuneStrategy:
    """Make a strategy out of a text such as ``FirstWinsStrategy(OpenVINOBackend, ONNXRuntimeBackend)``.

    Raises:
        AITuneUserInputError: If a name in it is not known, or the strategy needs something that the text lacks.
    """
    match = _WRITTEN.fullmatch(text.strip())
    name = match["name"] if match is not None else ""
    kind: Any = getattr(tune_strategy, name, None)
    if match is None or not isinstance(kind, type) or not issubclass(kind, TuneStrategy) or kind is TuneStrategy:
        known = [each for each in tune_strategy.__all__ if each.endswith("Strategy") and each != "TuneStrategy"]
        raise AITuneUserInputError(f"{text!r} is no strategy; there are {', '.join(known)}")
    names = [part.strip() for part in (match["backends"] or "").split(",") if part.strip()]
    backends = [backend_by_name(each)() for each in names]
    try:
        if kind is tune_strategy.OneBackendStrategy:
            return kind(*backends)
        options: dict[str, Any] = {"backends": backends or None}
        made: TuneStrategy = kind(**options)
        return made
    except TypeError as error:
        raise AITuneUserInputError(f"{text!r} cannot be made from a text: {error}") from error
