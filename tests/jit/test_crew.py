"""One worker for the tunes of a program: shared while they follow each other, and gone when they do not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
import torch

import aitune.torch as ait
from aitune.torch.backend import Backend, BackendConfig, Engine
from aitune.torch.jit.crew import Crew
from aitune.torch.jit.patcher import disable_jit_tuning, session


@pytest.fixture(autouse=True)
def isolated(monkeypatch, isolation):
    monkeypatch.setattr(ait.config, "isolation", "process")


@pytest.fixture
def crew():
    made = Crew()
    yield made
    made.close()


def guard(executor):
    executor.open()
    return psutil.Process(executor.started.guard_pid)


def test_tunes_that_follow_each_other_share_a_worker_until_it_is_closed(crew, cache_dir):
    with crew.executor() as first:
        process = guard(first)
    with crew.executor() as second:
        assert second is first
        crew.close()  # not while a tune has it
        assert guard(second) == process
    crew.close()
    crew.close()
    assert not process.is_running()
    assert not list(cache_dir.rglob("*.files"))


def test_in_other_surroundings_another_worker_starts(crew, monkeypatch, tmp_path):
    with crew.executor() as first:
        process = guard(first)
    monkeypatch.syspath_prepend(str(tmp_path))
    with crew.executor() as second:
        assert second is not first
        assert not process.is_running()
        assert guard(second).is_running()


def test_without_isolation_there_is_none(crew, monkeypatch):
    with crew.executor() as first:
        process = guard(first)
    monkeypatch.setattr(ait.config, "isolation", "none")
    with crew.executor() as second:
        assert second is None
    assert not process.is_running()


def test_an_idle_worker_ends():
    crew = Crew(idle_seconds=0.05)
    with crew.executor() as executor:
        process = guard(executor)
        time.sleep(0.2)
        assert process.is_running()
    process.wait(30)


def test_a_forked_child_leaves_the_workers_of_its_parent_alone(crew):
    with crew.executor() as executor:
        process = guard(executor)
    child = os.fork()
    if child == 0:
        crew.forget()
        crew.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert process.is_running()
    with crew.executor() as again:
        assert again is executor


class _Noted(Engine):
    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def run(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.weight, self.bias))

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        torch.save([self.weight, self.bias], folder / "state.pt")


class NotesItsProcess(Backend[BackendConfig]):
    """Writes down in which process it is built."""

    notes: Path

    def build(self, job):
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()}\n")
        linear = job.module.linear
        return _Noted(linear.weight.detach().clone(), linear.bias.detach().clone())

    def load(self, job, folder):
        return _Noted(*torch.load(folder / "state.pt"))


def test_every_module_of_a_program_is_built_by_one_worker_that_ends_with_tuning(jit, always, net, tmp_path):
    notes = tmp_path / "notes"
    backend = NotesItsProcess()
    backend.notes = notes
    jit.strategy = always(backend)
    first, second = net.blocks
    with torch.no_grad():
        first(torch.ones(2, 4))
        second(torch.ones(2, 4))
    assert [ait.handle(module).serves for module in (first, second)] == [True, True]
    one, other = notes.read_text().split()
    assert one == other != str(os.getpid())
    disable_jit_tuning()
    assert not psutil.pid_exists(int(one))
    assert session._tuner.crew._executor is None
