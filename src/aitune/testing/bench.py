"""A bench whose time is a fake clock's: strategies are tested with real trials, and without waiting or noise."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from aitune.testing.backends import FunctionBackend, FunctionBackendConfig
from aitune.testing.clock import FakeClock
from aitune.torch.bench import Bench, Rules, Tools
from aitune.torch.bench import Path as CallPath
from aitune.torch.graph.dims import BatchDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec
from aitune.torch.graph.tree import flatten
from aitune.torch.measure import Stopwatch
from aitune.torch.tune_strategy import TuneStrategy
from aitune.torch.worker import BuildFolders

__all__ = ["TimedModule", "failing_backend", "fake_bench", "timed_backend"]

_BATCHES = (1, 4)


class TimedModule(torch.nn.Module):
    """Doubles rows of 3 numbers, and takes time on a clock for it.

    Args:
        clock: Where time passes; None makes a quiet :class:`~aitune.testing.FakeClock`.
        seconds: Time of a call.
        seconds_a_row: Time of each row in it, in addition.
    """

    def __init__(self, clock: FakeClock | None = None, seconds: float = 1e-3, seconds_a_row: float = 1e-4) -> None:
        super().__init__()
        found = FakeClock() if clock is None else clock
        # Behind a function: time that passes is no state of the module, which checks would put back or copy.
        self._clock: Callable[[], FakeClock] = lambda: found
        self.seconds = seconds
        self.seconds_a_row = seconds_a_row
        self.eval()

    @property
    def clock(self) -> FakeClock:
        """Where time passes."""
        return self._clock()

    def duration(self, x: torch.Tensor) -> float:
        """Return how long a call takes on a quiet machine, in seconds."""
        return self.seconds + self.seconds_a_row * len(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute float32[batch, 3] from float32[batch, 3]."""
        self.clock.work(self.duration(x))
        return x * 2


def timed_backend(
    label: str, fraction: float, answer: Callable[[torch.Tensor], Any] | None = None, **facts: Any
) -> FunctionBackend:
    """Return a backend for a :class:`TimedModule`, whose engines take a fraction of the module's time.

    Args:
        label: Tells it from others in descriptions.
        fraction: Below 1 is faster than the module, 2.0 takes twice as long.
        answer: What an engine computes; None computes what the module does.
        facts: Fields of :class:`~aitune.testing.FunctionBackendConfig`, such as ``precision``.
    """

    def make(job: Job) -> Callable[[torch.Tensor], Any]:
        module = job.module
        assert isinstance(module, TimedModule)

        def run(x: torch.Tensor) -> Any:
            module.clock.work(fraction * module.duration(x))
            return x * 2 if answer is None else answer(x)

        return run

    return FunctionBackend(make, FunctionBackendConfig(label=label, **facts))


def failing_backend(label: str = "failing", error: Exception | None = None) -> FunctionBackend:
    """Return a backend whose builds raise.

    Args:
        label: Tells it from others in descriptions.
        error: What they raise; None raises a ``RuntimeError``.
    """

    def make(_: Job) -> Callable[..., Any]:
        raise error or RuntimeError(f"{label} cannot build")

    return FunctionBackend(make, FunctionBackendConfig(label=label))


def fake_bench(
    strategy: TuneStrategy | None = None,
    *,
    module: TimedModule | None = None,
    rules: Rules | None = None,
    deadline: float | None = None,
    fallbacks: Callable[[], Mapping[str, int]] = dict,
    folder: Path | None = None,
) -> Bench:
    """Return a real bench over one graph of a :class:`TimedModule`, with batches of 1 to 4 rows.

    Everything in it is aitune's own but time: builds, checks, comparisons and the choice between equals are real.

    Args:
        strategy: Whose rules candidates are held to.
        module: What is tuned, its clock with it; None makes one on a quiet machine.
        rules: Rules in place of the strategy's; without either, the defaults.
        deadline: Reading of the clock after which no candidate is begun; None for none.
        fallbacks: Tells how many calls of a candidate the original answered instead, by reason.
        folder: Where builds put their files; None makes a temporary folder that goes with the bench.
    """
    module = TimedModule() if module is None else module
    place = Path(tempfile.mkdtemp(prefix="aitune-testing-")) if folder is None else folder
    samples = tuple(Sample((_rows(batch),), {}, batch) for batch in _BATCHES)
    job = Job("model", module, _graph(module), samples, torch.device("cpu"), place / "files", place / "log")
    tools = Tools(
        original=module._call_impl,
        route=lambda _, engine: CallPath(engine.run, fallbacks),
        folders=BuildFolders(place),
        stopwatch=Stopwatch(clock=module.clock),
        deadline=deadline,
    )
    bench = Bench(job, rules or (strategy.rules if strategy is not None else Rules()), tools)
    if folder is None:
        weakref.finalize(bench, shutil.rmtree, place, ignore_errors=True)
    return bench


def _rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, generator=torch.Generator().manual_seed(batch))


def _graph(module: TimedModule) -> GraphSpec:
    shape = (BatchDim("batch0", _BATCHES[0], _BATCHES[-1]), 3)

    def spec(name: str) -> CallSpec:
        tensor = TensorSpec((name,) if name else (), shape, torch.float32, torch.device("cpu"))
        return CallSpec(flatten({name: None} if name else None)[1], (tensor,))

    return GraphSpec("graph0", CallSignature.of(module.forward), spec("x"), spec(""))
