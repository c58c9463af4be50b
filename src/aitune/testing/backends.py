"""A backend made from a function: for tests of strategies, checks and plugins, without a library or a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aitune.torch.backend import Backend, BackendConfig, Engine
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["FunctionBackend", "FunctionBackendConfig"]

Make = Callable[[Job], Callable[..., Any]]


@dataclass(frozen=True)
class FunctionBackendConfig(BackendConfig):
    """What tells one made-up backend from another.

    Attributes:
        label: Shown in reports.
        precision: What its engines declare to compute in.
        reentrant: As ``Engine.reentrant``.
        live_weights: As ``Engine.live_weights``.
        ranges: As ``Engine.ranges``.
    """

    label: str = ""
    precision: Precision = "float32"
    reentrant: bool = True
    live_weights: bool = False
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class FunctionBackend(Backend[FunctionBackendConfig]):
    """Builds engines by calling a function.

    Args:
        make: Takes the job, returns what the engine runs: a function with the forward's parameters. What it raises is a
            failed build.
        config: Label and facts; None for the defaults.

    Attributes:
        builds: How many engines were asked for.
        open_engines: How many were built and not closed yet.
    """

    config_class = FunctionBackendConfig
    devices = ("cpu", "cuda", "xpu", "mps")
    contained = False

    def __init__(self, make: Make, config: FunctionBackendConfig | None = None) -> None:
        super().__init__(config)
        self._make = make
        self.builds = 0
        self.open_engines = 0

    @property
    def safe_in_process(self) -> bool:
        """Always: it is the test's own function."""
        return True

    def build(self, job: Job) -> Engine:
        """Build an engine out of what ``make`` returns."""
        self.builds += 1
        engine = _FunctionEngine(self._make(job), self)
        self.open_engines += 1
        return engine

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class _FunctionEngine(Engine):
    def __init__(self, function: Callable[..., Any], backend: FunctionBackend) -> None:
        self._backend = backend
        self._open = True
        self.run = function  # type: ignore[method-assign]
        self.precision = backend.config.precision
        self.reentrant = backend.config.reentrant
        self.live_weights = backend.config.live_weights
        self.ranges = backend.config.ranges
        self.notes = ("serves less than the graph",) if self.ranges else ()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Replaced on every instance by the function itself."""
        raise AssertionError(args, kwargs)

    def close(self) -> None:
        """Count the engine as closed."""
        if self._open:
            self._open = False
            self._backend.open_engines -= 1
