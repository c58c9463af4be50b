"""Fakes and contract suites for authors of backends and of tests."""

from aitune.testing.backends import FunctionBackend, FunctionBackendConfig
from aitune.testing.clock import Disturbance, FakeClock

__all__ = ["Disturbance", "FakeClock", "FunctionBackend", "FunctionBackendConfig"]
