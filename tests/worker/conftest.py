"""A worker that the tests of a file share, and backends for it made from functions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from aitune.testing import Case, FunctionBackend, FunctionBackendConfig
from aitune.torch.worker import Assignment, Attempt, BuildFolders, Limits, ProcessExecutor


class Net(torch.nn.Module):
    """A module that pickles."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def net_inputs(batch, generator):
    return (torch.randn(batch, 8, generator=generator),), {}


class Shop:
    """A workplace for one module, with short words for what tests ask of it."""

    def __init__(self, executor, folders, module=Net, **assignment):
        self.executor = executor
        self.folders = folders
        self.job = Case("net", module, net_inputs).job(folders.new("job")[0], "cpu")
        workload = tuple(sample.fresh() for sample in self.job.samples)
        self.place = executor.workplace(Assignment(job=self.job, workload=workload, **assignment))

    def attempt(self, backend, profiling=None, **limits):
        """Carry out an attempt; returns it with its outcome."""
        folder, log = self.folders.new(backend.name)
        attempt = Attempt(backend=backend, folder=folder, log=log, limits=Limits(**limits), profiling=profiling)
        return attempt, self.place.attempt(attempt)

    def outcome(self, build, **limits):
        """Return the outcome of a backend whose build is a function of the job."""
        return self.attempt(self.backend_of(build), **limits)[1]

    @staticmethod
    def backend_of(build):
        """Make a backend of a function of the job."""
        return FunctionBackend(build, FunctionBackendConfig(build.__name__))

    def is_well(self):
        """Whether a candidate that does nothing wrong gets through."""
        return self.outcome(eager).error is None


def eager(job):
    return job.forward


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return BuildFolders(tmp_path_factory.mktemp("builds"))


@pytest.fixture(scope="module")
def executor(folders):
    with ProcessExecutor(folders) as executor:
        executor.open()
        yield executor


@pytest.fixture(scope="module")
def shop(executor, folders):
    shop = Shop(executor, folders)
    yield shop
    shop.place.close()


@pytest.fixture
def make_shop(executor, folders):
    """Make a workplace for another module: ``make_shop(module)``."""
    made = []

    def make(module=Net, **assignment):
        made.append(Shop(executor, folders, module, **assignment))
        return made[-1]

    yield make
    for shop in made:
        shop.place.close()


class Pids:
    """Process ids that processes of a test write to a file, one a line."""

    def __init__(self, file):
        self.file = file

    def read(self, count, seconds=90.0):
        """Wait until so many are there."""
        until = time.monotonic() + seconds
        while True:
            pids = self.file.read_text().split() if self.file.exists() else []
            if len(pids) >= count:
                return [int(pid) for pid in pids]
            assert time.monotonic() < until, f"{count} processes were to start, {len(pids)} did"
            time.sleep(0.02)

    def end_within(self, seconds, count):
        """Assert that all of them end."""
        until = time.monotonic() + seconds
        pids = self.read(count)
        while living := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < until, f"{living} of {pids} are still alive"
            time.sleep(0.02)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def pids(tmp_path):
    return Pids(tmp_path / "pids")
