"""Strategies: which candidate serves a graph. They hold settings only, and ask the bench for trials."""

from aitune.torch.tune_strategy.base import ListStrategy, TuneStrategy
from aitune.torch.tune_strategy.first_wins import FirstWinsStrategy
from aitune.torch.tune_strategy.latency_budget import LatencyBudgetStrategy
from aitune.torch.tune_strategy.max_throughput import MaxThroughputStrategy
from aitune.torch.tune_strategy.min_latency import MinLatencyStrategy
from aitune.torch.tune_strategy.one_backend import OneBackendStrategy

__all__ = [
    "FirstWinsStrategy",
    "LatencyBudgetStrategy",
    "ListStrategy",
    "MaxThroughputStrategy",
    "MinLatencyStrategy",
    "OneBackendStrategy",
    "TuneStrategy",
]
