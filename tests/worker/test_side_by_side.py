"""Several workers build at once; what is checked and measured has the machine to itself."""

from __future__ import annotations

import _thread
import itertools
import os
import signal
import threading
import time

import pytest

from aitune.exceptions import BackendCrashedError
from aitune.torch.worker import Attempt, ProcessExecutor
from aitune.torch.worker.gate import ClosedGateError, Gate


def note(file, word):
    with file.open("a") as sink:
        sink.write(f"{word}\n")


def words(file):
    return file.read_text().split()


def meeting(file, name, builders):
    """Build only once all others are building as well, and note what is done when."""

    def build(job):
        note(file, f"build-{name}")
        until = time.monotonic() + 120
        while sum(word.startswith("build") for word in words(file)) < builders:
            assert time.monotonic() < until, "the others do not build at the same time"
            time.sleep(0.01)
        note(file, f"built-{name}")

        def run(x):
            note(file, f"run-{name}")
            return job.forward(x)

        return run

    return build


def crash_at_the_meeting(file, name, builders):
    def build(job):
        meeting(file, name, builders)(job)
        os.abort()

    return build


@pytest.fixture
def two_workers(folders):
    with ProcessExecutor(folders, parallel=2) as executor:
        yield executor


def test_builds_overlap_and_the_rest_does_not(two_workers, shop, tmp_path):
    file = tmp_path / "notes"
    shop = type(shop)(two_workers, shop.folders)

    def attempt(build):
        folder, log = shop.folders.new("side")
        return Attempt(backend=shop.backend_of(build), folder=folder, log=log)

    attempts = [
        attempt(meeting(file, "a", 2)),
        attempt(meeting(file, "b", 2)),
        attempt(crash_at_the_meeting(file, "c", 4)),
        attempt(meeting(file, "d", 4)),
        attempt(meeting(file, "e", 5)),
    ]
    outcomes = list(shop.place.attempts(attempts))
    shop.place.close()

    assert [type(outcome.error) for outcome in outcomes] == [
        *(type(None), type(None)),
        *(BackendCrashedError, type(None)),
        type(None),
    ]
    done = words(file)
    runs = [word for word in done if word.startswith("run")]
    assert len([1 for one, next_one in itertools.pairwise(runs) if one != next_one]) == 3  # a b d e
    assert {"built-a", "built-b"} <= set(done[: done.index(runs[0])])


def test_ctrl_c_while_several_build_ends_them_all(two_workers, shop, pids):
    shop = type(shop)(two_workers, shop.folders)

    def hang(job):
        note(pids.file, os.getpid())
        time.sleep(3600)

    def press():
        pids.read(2)
        _thread.interrupt_main()

    attempts = [
        Attempt(backend=shop.backend_of(hang), folder=folder, log=log)
        for folder, log in (shop.folders.new("hang"), shop.folders.new("hang"))
    ]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(shop.place.attempts(attempts))
    finally:
        signal.signal(signal.SIGINT, before)
        presser.join()

    pids.end_within(2.0, 2)
    assert shop.is_well()
    shop.place.close()


def test_nobody_passes_the_gate_while_somebody_builds():
    gate, passed = Gate(2), []
    waiting = threading.Thread(target=lambda: passed.append(gate.pass_through()))
    waiting.start()
    waiting.join(0.05)
    assert not passed

    gate.leave(passed=False)
    waiting.join(10)
    assert passed == [None]


def test_a_gate_that_is_closed_sends_those_away_who_wait():
    gate, found = Gate(2), []

    def wait():
        try:
            gate.pass_through()
        except ClosedGateError as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    gate.close()
    waiting.join(10)
    assert len(found) == 1
