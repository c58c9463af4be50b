"""A whole tune over backends that crash, hang and eat: scenarios 9 to 12, with real faults in a real worker."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import aitune.torch as ait
from aitune.torch.backend import Backend, BackendConfig, Engine, ONNXRuntimeBackend, TorchEagerBackend
from aitune.torch.graph.job import Job
from aitune.torch.trial import Verdict


class _Copied(Engine):
    """Runs a copy of the module's weights, as an engine of a library does."""

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def run(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"weight": self.weight, "bias": self.bias}, folder / "state.pt")


class Plain(Backend[BackendConfig]):
    """A right backend; those below go wrong before they get here."""

    def build(self, job: Job) -> Engine:
        self.misbehave()
        linear = job.module.linear
        return _Copied(linear.weight.detach().clone(), linear.bias.detach().clone())

    def load(self, job, folder):
        return _Copied(**torch.load(folder / "state.pt"))

    def misbehave(self):
        pass


class Aborting(Plain):
    def misbehave(self):
        print("about to abort", flush=True)
        os.abort()


class Segfaulting(Plain):
    def misbehave(self):
        ctypes.string_at(0)


class Hanging(Plain):
    def misbehave(self):
        while True:
            time.sleep(0.01)


class Slow(Plain):
    def misbehave(self):
        time.sleep(4.0)


class Raising(Plain):
    def misbehave(self):
        raise ValueError("no luck today")


class Printing(Plain):
    def misbehave(self):
        os.write(1, b"words on a descriptor\n")
        print("words of Python")


def strategy(*backends):
    chosen = ait.MaxThroughputStrategy(backends=list(backends))
    return chosen.enable_performance_validation(False).enable_find_max_batch_size(False)


def trials(result):
    (graph,) = result.modules["model"].graphs
    return {trial.backend.split("(")[0]: trial for trial in graph.trials}


@pytest.fixture
def isolated(monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", "process")


pytestmark = pytest.mark.usefixtures("isolated")


def test_scenarios_9_and_10_crashes_and_hangs_cost_one_candidate_each(model, samples, capfd):
    x = torch.randn(2, 4)
    before = model(x)
    backends = Aborting(), Segfaulting(), Raising(), Hanging(), Printing(), Plain()
    wrapped = ait.Module(model, "model", strategy(*backends))
    result = ait.tune(wrapped, samples, backend_time_limit=8.0)
    found = trials(result)
    assert found["Aborting"].verdict is Verdict.crashed
    assert "SIGABRT" in found["Aborting"].reason
    assert found["Segfaulting"].verdict is Verdict.crashed
    assert "SIGSEGV" in found["Segfaulting"].reason
    assert found["Raising"].verdict is Verdict.build_failed
    assert "no luck today" in found["Raising"].reason
    assert found["Hanging"].verdict is Verdict.timed_out
    assert "8" in found["Hanging"].reason
    assert found["Plain"].accepted
    assert "SIGSEGV" in Path(found["Segfaulting"].log_path).read_text()
    assert "about to abort" in Path(found["Aborting"].log_path).read_text()
    text = Path(found["Printing"].log_path).read_text()
    assert "words on a descriptor" in text
    assert "words of Python" in text
    shown = capfd.readouterr()
    assert "words" not in shown.out + shown.err, "a builder's output stays in its log"
    torch.testing.assert_close(wrapped(x), before)
    assert ait.handle(wrapped).stats.engine_calls


def test_scenario_12_the_time_limit_of_the_tune_keeps_the_best_so_far(model, samples):
    wrapped = ait.Module(model, "model", strategy(Plain(), Hanging(), Slow(), Slow(), Slow()))
    start = time.monotonic()
    result = ait.tune(wrapped, samples, time_limit=15.0)
    assert time.monotonic() - start < 15.0 + 5.0
    (graph,) = result.modules["model"].graphs
    assert graph.chosen == "Plain()"
    assert graph.trials[1].verdict is Verdict.timed_out
    assert {trial.verdict for trial in graph.trials[2:]} == {Verdict.skipped}
    assert not result.complete


def test_a_build_that_hangs_beside_others_does_not_cost_them_their_time(model, samples, monkeypatch):
    monkeypatch.setattr(ait.config, "max_parallel_builds", 2)
    wrapped = ait.Module(model, "model", strategy(Hanging(), Plain()))
    result = ait.tune(wrapped, samples, time_limit=24.0)
    (graph,) = result.modules["model"].graphs
    assert graph.chosen == "Plain()"
    assert trials(result)["Hanging"].verdict is Verdict.timed_out


def test_without_any_limit_of_time_workers_are_waited_for(model, samples):
    wrapped = ait.Module(model, "model", strategy(Plain()))
    result = ait.tune(wrapped, samples, time_limit=math.inf, backend_time_limit=1e300)
    assert trials(result)["Plain"].accepted


class SlowInDouble(torch.nn.Module):
    """Its copy in float64 takes for ever."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        if self.linear.weight.dtype is torch.float64:
            time.sleep(60.0)
        return self.linear(x)


def test_a_reference_that_takes_too_long_does_not_hold_up_the_tune(samples):
    wrapped = ait.Module(SlowInDouble().eval(), "model", strategy(Plain()))
    start = time.monotonic()
    result = ait.tune(wrapped, samples, time_limit=24.0)  # of which a second worker takes some to start
    assert time.monotonic() - start < 24.0 + 5.0
    (graph,) = result.modules["model"].graphs
    assert graph.trials[0].accepted, "the module's own answers are what is compared with then"
    assert any("the time for it was over" in note for note in (*graph.notes, *graph.trials[0].evidence))


class SlowToExport(torch.nn.Module):
    """Its export takes for ever."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        if torch.compiler.is_exporting():
            time.sleep(60.0)
        return self.linear(x)


def test_an_export_that_takes_too_long_does_not_hold_up_the_tune(samples):
    pytest.importorskip("onnxruntime")
    wrapped = ait.Module(SlowToExport().eval(), "model", strategy(Plain(), ONNXRuntimeBackend()))
    start = time.monotonic()
    result = ait.tune(wrapped, samples, time_limit=15.0)
    assert time.monotonic() - start < 15.0 + 5.0
    (graph,) = result.modules["model"].graphs
    assert graph.chosen == "Plain()"
    assert trials(result)["ONNXRuntimeBackend"].verdict is Verdict.timed_out


class SlowToArrive(torch.nn.Module):
    """Takes for ever to be read by another process, from the given time on: a lock that it waits for, a download."""

    def __init__(self, readings, counted):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.readings = readings
        self.counted = counted

    def forward(self, x):
        return self.linear(x)

    def __setstate__(self, state):
        super().__setstate__(state)
        seen = self.counted.read_text().split()
        if str(os.getpid()) in seen:  # a copy that is made in one process
            return
        self.counted.write_text(" ".join([*seen, str(os.getpid())]))
        if len(seen) > self.readings:  # the process of the test is the first
            time.sleep(3600.0)


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param(0, id="at first"),
        pytest.param(1, id="by the worker that replaces one", marks=pytest.mark.slow),
    ],
)
def test_a_module_that_takes_too_long_to_be_read_does_not_hold_up_the_tune(samples, tmp_path, readings):
    counted = tmp_path / "readings"
    counted.write_text(str(os.getpid()))
    module = SlowToArrive(readings, counted).eval()
    wrapped = ait.Module(module, "model", strategy(Aborting(), Plain()))
    start = time.monotonic()
    result = ait.tune(wrapped, samples, time_limit=12.0)
    assert time.monotonic() - start < 60.0, "workers have ten minutes for it where there is no limit"
    plain = trials(result)["Plain"]
    assert plain.verdict is Verdict.skipped
    assert plain.reason == "the time limit of the tune was reached"
    assert len(counted.read_text().split()) == 1 + readings + 1, "this process, and one that hung after the others"


def test_the_original_is_judged_in_the_worker_where_no_candidate_needs_one(model, samples):
    wrapped = ait.Module(model, "model", strategy(TorchEagerBackend()))
    result = ait.tune(wrapped, samples)
    assert result.modules["model"].graphs[0].trials[0].accepted


class NoEngine(Plain):
    def build(self, job):
        return None


def test_a_builder_that_returns_no_engine_costs_its_row_alone(model, samples):
    wrapped = ait.Module(model, "model", strategy(NoEngine(), Plain()))
    found = trials(ait.tune(wrapped, samples))
    assert found["NoEngine"].verdict is Verdict.build_failed
    assert "has to return an Engine" in found["NoEngine"].reason
    assert found["Plain"].accepted


class Activated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


def test_a_module_that_is_another_in_the_worker_is_built_here(samples, monkeypatch, caplog):
    """A worker imports torch anew, without the function that was put in another one's place."""
    monkeypatch.setattr(torch.nn.functional, "gelu", lambda x: 5 * torch.relu(x))
    backends = pytest.importorskip("aitune.torch.backend")
    wrapped = ait.Module(Activated().eval(), "model", strategy(Plain(), backends.ONNXRuntimeBackend()))
    found = trials(ait.tune(wrapped, samples))
    assert found["Plain"].verdict is Verdict.skipped, "it is not safe to be built here"
    assert "computes something else in a worker" in found["Plain"].reason
    assert found["ONNXRuntimeBackend"].accepted, found["ONNXRuntimeBackend"].reason
    x = torch.randn(2, 4)
    torch.testing.assert_close(wrapped(x), 5 * torch.relu(wrapped.linear(x)), rtol=1e-4, atol=1e-5)


class InPlace(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        x.add_(1)
        return self.linear(x)


def test_a_module_that_changes_its_input_is_measured_on_copies(samples):
    wrapped = ait.Module(InPlace().eval(), "model", strategy(TorchEagerBackend()))
    found = trials(ait.tune(wrapped, samples))
    assert found["TorchEagerBackend"].accepted, found["TorchEagerBackend"].reason


FULL = """
import resource, sys, tempfile
from pathlib import Path
import torch
import aitune.torch as ait
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.worker import Assignment, cargo
from aitune.exceptions import NotCarriedError
from aitune.torch.graph.job import Job

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # as a disk that is full after so many bytes
job = Job("m", torch.nn.Linear(256, 256), None, (), torch.device("cpu"), Path(), Path())
try:
    cargo.pack(Assignment(job=job, workload=()), Path(tempfile.mkdtemp()) / "cargo")
except NotCarriedError as error:
    print("not carried:", error)
import gc
gc.collect()
print("alive")
"""


def test_a_disk_that_fills_up_while_a_module_is_written_ends_no_process():
    done = subprocess.run([sys.executable, "-c", FULL], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "not carried: cannot write" in done.stdout
    assert done.stdout.endswith("alive\n")
