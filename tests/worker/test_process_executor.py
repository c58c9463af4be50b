"""What a worker does for a candidate, and how a module gets there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types

import psutil
import pytest
import torch

from aitune.exceptions import CorrectnessError, NotCarriedError
from aitune.testing.wrong import one_row, other_dtype
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.measure import ProfilingConfig
from aitune.torch.trial import Verdict
from aitune.torch.worker import BuildFolders, ProcessExecutor

QUICK = ProfilingConfig(max_seconds=2.0)


def eager(job):
    return job.forward


# ------------------------------------------------------------------------------------------------- a candidate


def test_a_candidate_is_built_checked_and_measured(shop):
    _, outcome = shop.attempt(shop.backend_of(eager), QUICK)

    assert outcome.error is None
    assert outcome.judgement.accepted
    assert outcome.precision == "float32"
    assert outcome.timing.blocks > 0
    assert 0 < outcome.build_seconds < outcome.seconds
    assert not outcome.saved


def test_an_engine_that_can_be_kept_is_loaded_here_from_its_folder(shop):
    attempt, outcome = shop.attempt(ONNXRuntimeBackend())

    assert outcome.error is None
    assert outcome.saved
    engine = attempt.backend.load(shop.job, attempt.folder)
    (x,) = shop.job.samples[0].args
    torch.testing.assert_close(engine.run(x), shop.job.module(x).detach())
    engine.close()


def test_wrong_values_are_rejected_with_the_judgement(shop):
    _, outcome = shop.attempt(one_row())

    assert type(outcome.error) is CorrectnessError
    assert outcome.judgement.verdict is Verdict.wrong
    assert outcome.judgement.error > outcome.judgement.bound
    assert not outcome.saved


def test_without_values_the_structure_is_still_checked(make_shop):
    shop = make_shop(values=False)

    assert shop.attempt(one_row())[1].error is None
    assert type(shop.attempt(other_dtype())[1].error) is CorrectnessError


def test_an_unchecked_candidate_may_be_wrong(make_shop):
    shop = make_shop(correctness=False)

    outcome = shop.attempt(one_row())[1]
    assert (outcome.error, outcome.judgement) == (None, None)


def test_the_users_bound_counts(make_shop):
    assert make_shop(max_error=0.5).attempt(one_row())[1].error is None


def wrong_at_last():
    calls = []

    def build(job):
        def run(x):
            calls.append(1)
            return job.forward(x) * (1 if len(calls) < 40 else 2)

        return run

    return build


def test_outputs_are_watched_while_it_is_measured(shop):
    _, outcome = shop.attempt(shop.backend_of(wrong_at_last()), QUICK)

    assert type(outcome.error) is CorrectnessError
    assert outcome.timing is None


def test_the_reference_is_made_in_the_worker_once(make_shop):
    shop = make_shop()
    reference = shop.place.reference(60.0)

    assert reference.kind == "float64"
    assert all(outcome is not None for outcome in reference.outcomes)
    assert shop.place.reference() is reference
    shop.outcome(die)
    assert shop.is_well()
    assert shop.place.reference() is reference


def die(job):
    os.abort()


class Slow(torch.nn.Module):
    """Takes its time in double precision alone."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        if x.dtype is torch.float64:
            time.sleep(3600)
        return self.layer(x)


def test_a_reference_that_takes_too_long_is_eager_with_the_reason(make_shop):
    shop = make_shop(Slow)
    started = time.monotonic()
    reference = shop.place.reference(0.5)

    assert time.monotonic() - started < 30
    assert reference.kind == "eager"
    assert "time" in reference.reason
    outcome = shop.outcome(eager, seconds=120.0)  # does not try it again
    assert outcome.error is None
    assert any("time for it was over" in note for note in outcome.judgement.notes)


# ------------------------------------------------------------------------------------------- how a module gets there


class Locked(torch.nn.Module):
    """Holds what does not pickle, and does not need it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.lock = threading.Lock()

    def forward(self, x):
        return {"y": torch.relu(self.layer(x)), "x": x}


class Fickle(torch.nn.Module):
    """Holds what does not pickle, and cannot be exported either."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.inner = torch.nn.Module()
        self.inner.lock = threading.Lock()

    def forward(self, x):
        y = self.layer(x)
        return y if float(y.sum()) > 1e9 else y + 1


class Exiting(torch.nn.Linear):
    """Ends the program of whoever copies it, which code may take for a mistake."""

    def __init__(self):
        super().__init__(8, 4)

    def __reduce__(self):
        sys.exit("never copy me")


def test_a_module_that_exits_when_it_is_pickled_ends_no_program(make_shop):
    with pytest.raises(NotCarriedError, match=r"does not pickle \(SystemExit: never copy me\).*exported program"):
        make_shop(Exiting)


class ExitingElsewhere(torch.nn.Linear):
    """Ends every other program that reads it."""

    def __init__(self):
        super().__init__(8, 4)
        self.home = os.getpid()

    def __setstate__(self, state):
        super().__setstate__(state)
        if os.getpid() != self.home:
            sys.exit("not here")


def test_a_module_that_exits_when_it_is_read_travels_as_an_exported_program(make_shop, caplog):
    with caplog.at_level("INFO", logger="aitune"):
        shop = make_shop(ExitingElsewhere)

    assert "a worker cannot read it (SystemExit: not here)" in caplog.text
    assert shop.is_well()


def test_a_module_that_does_not_pickle_travels_as_an_exported_program(make_shop, caplog):
    with caplog.at_level("INFO", logger="aitune"):
        shop = make_shop(Locked)

    assert "lock does not pickle" in caplog.text
    assert "cannot be interrupted" in caplog.text
    assert shop.place.reference(60.0).kind == "float64"
    attempt, outcome = shop.attempt(ONNXRuntimeBackend(), QUICK)
    assert outcome.error is None
    engine = attempt.backend.load(shop.job, attempt.folder)
    (x,) = shop.job.samples[0].args
    torch.testing.assert_close(engine.run(x)["y"], shop.job.module(x)["y"].detach())
    engine.close()


def test_a_module_that_can_travel_in_no_way_is_refused_with_what_stands_in_the_way(make_shop):
    with pytest.raises(NotCarriedError, match=r"inner\.lock does not pickle .*exported program"):
        make_shop(Fickle)


def test_a_folder_that_cannot_be_written_to_is_said(executor, make_shop, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    shop = make_shop()

    class Nowhere(BuildFolders):
        def new(self, *labels):
            return tmp_path / "file" / "x", tmp_path / "log"

    with ProcessExecutor(Nowhere(tmp_path)) as other:
        with pytest.raises(NotCarriedError, match="cannot write below"):
            type(shop)(other, shop.folders)


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_class_of_a_module_that_was_made_by_hand_travels(make_shop, monkeypatch):
    made = types.ModuleType("made_by_hand")
    source = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return helper(x)\n"
    exec(source + "def helper(x):\n    return x + 1\n", made.__dict__)
    monkeypatch.setitem(sys.modules, "made_by_hand", made)

    assert make_shop(made.Net).is_well()


def test_hooks_lambdas_and_local_classes_travel(make_shop):
    class Local(Doubled):
        def __init__(self):
            super().__init__(8, 4)
            self.register_forward_hook(lambda module, inputs, output: output + 1)

    assert make_shop(Local).is_well()


def test_the_worker_works_under_the_settings_of_this_process(make_shop):
    torch.set_default_dtype(torch.float64)
    try:
        shop = make_shop()
        error = shop.outcome(lambda job: job.missing if torch.get_default_dtype() is torch.float64 else None).error
    finally:
        torch.set_default_dtype(torch.float32)

    assert type(error) is AttributeError


# ------------------------------------------------------------------------------------------------- the executor


def test_a_worker_serves_graph_after_graph(make_shop, pids):
    def note(job):
        with pids.file.open("a") as sink:
            sink.write(f"{os.getpid()}\n")
        return job.forward

    for _ in range(2):
        assert make_shop().outcome(note).error is None

    first, second = pids.read(2)
    assert first == second


def leave_a_process_behind(job):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    return job.forward


def lose_memory(job):
    sys.lost = bytearray(1 << 30)
    for start in range(0, len(sys.lost), 4096):
        sys.lost[start] = 1
    return job.forward


@pytest.mark.parametrize("build", [leave_a_process_behind, pytest.param(lose_memory, marks=pytest.mark.slow)])
def test_a_candidate_that_leaves_something_behind_has_its_worker_replaced(shop, pids, build):
    assert shop.is_well()
    worker = shop.executor.worker()
    before = psutil.Process(worker.guard_pid)

    assert shop.outcome(build).error is None
    assert not before.is_running()
    assert shop.executor.worker() is not worker


def test_a_worker_that_died_while_nobody_asked_it_for_anything_costs_no_candidate(shop):
    assert shop.is_well()
    (child,) = psutil.Process(shop.executor.worker().guard_pid).children()
    child.kill()
    time.sleep(0.5)

    assert shop.is_well()


def test_output_is_shown_live_where_that_is_asked_for(shop, monkeypatch, capfd):
    def chat(job):
        print("a word to the console")
        return job.forward

    monkeypatch.setenv("AITUNE_CONSOLE_OUTPUT", "1")
    with ProcessExecutor(shop.folders) as executor:  # its guard has the standard error of this test
        attempt, outcome = type(shop)(executor, shop.folders).attempt(shop.backend_of(chat))

    assert outcome.error is None
    assert attempt.log.read_text() == "a word to the console\n"
    assert "a word to the console" in capfd.readouterr().err


def test_what_travelled_is_removed(make_shop):
    shop = make_shop()
    assert list(shop.folders.root.glob("*assignment*"))
    shop.place.close()
    shop.place.close()
    assert shop.place._folder.exists() is False


def test_closing_ends_a_worker_that_is_still_starting(tmp_path, pids):
    before = set(psutil.Process().children(recursive=True))
    executor = ProcessExecutor(BuildFolders(tmp_path))
    executor.open()
    executor.open()
    started = set(psutil.Process().children(recursive=True)) - before
    executor.close()
    executor.close()

    assert started
    assert not any(process.is_running() for process in started)


def test_it_works_in_a_thread(shop):
    found = []
    thread = threading.Thread(target=lambda: found.append(shop.is_well()))
    thread.start()
    thread.join()

    assert found == [True]


def test_a_process_forked_meanwhile_does_not_keep_a_worker_alive(tmp_path):
    executor = ProcessExecutor(BuildFolders(tmp_path))
    executor.open()
    guard = executor.worker()._guard
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # holds on to whatever it got, until the test is over
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        executor.close()
        assert guard.returncode == 0, "the guard did not notice"
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("frozen", True, "frozen application"), ("executable", "/usr/bin/app", "no Python"), ("executable", "", "no Py")],
)
def test_a_process_without_an_interpreter_says_so(monkeypatch, name, value, words):
    assert ProcessExecutor.hindrance() is None
    monkeypatch.setattr(sys, name, value, raising=False)

    assert words in ProcessExecutor.hindrance()
