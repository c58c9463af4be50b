"""Fakes and contract suites for authors of backends and strategies, and of tests. Needs pytest only to be run by it."""

from aitune.testing.backend_contract import BackendContract
from aitune.testing.backends import FunctionBackend, FunctionBackendConfig
from aitune.testing.bench import TimedModule, failing_backend, fake_bench, timed_backend
from aitune.testing.cases import Case, standard_cases
from aitune.testing.clock import Disturbance, FakeClock
from aitune.testing.strategy_contract import StrategyContract

__all__ = [
    "BackendContract",
    "Case",
    "Disturbance",
    "FakeClock",
    "FunctionBackend",
    "FunctionBackendConfig",
    "StrategyContract",
    "TimedModule",
    "failing_backend",
    "fake_bench",
    "standard_cases",
    "timed_backend",
]
