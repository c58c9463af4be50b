"""The shipped strategies keep the contract of strategies."""

from __future__ import annotations

import aitune.torch as ait
from aitune.testing import StrategyContract


class TestOneBackend(StrategyContract):
    raises_failures = True

    def make_strategy(self, backends):
        return ait.OneBackendStrategy(backends[0])


class TestFirstWins(StrategyContract):
    def make_strategy(self, backends):
        return ait.FirstWinsStrategy(backends)


class TestLatencyBudget(StrategyContract):
    def make_strategy(self, backends):
        return ait.LatencyBudgetStrategy(1000.0, backends)


class TestMinLatency(StrategyContract):
    def make_strategy(self, backends):
        return ait.MinLatencyStrategy(backends)


class TestMaxThroughput(StrategyContract):
    def make_strategy(self, backends):
        return ait.MaxThroughputStrategy(backends)
