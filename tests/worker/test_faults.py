"""Whatever a builder does to its process costs that candidate alone (scenarios 9 to 11, with real faults)."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
import time

import psutil
import pytest
import torch

from aitune.exceptions import (
    BackendBuildError,
    BackendCrashedError,
    BackendMemoryError,
    BackendTimeoutError,
    BackendUnsupportedError,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are made with what Linux has")


# ---------------------------------------------------------------------------------- the process is brought down


def abort(job):
    os.abort()


def segfault(job):
    print("about to read address 0")
    ctypes.string_at(0)


def exit_at_once(job):
    os._exit(0)


def kill_itself(job):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_its_group(job):
    os.killpg(0, signal.SIGKILL)


def close_everything(job):
    os.closerange(0, 1000)
    return job.forward


def ignore_signals_and_exit(job):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    os._exit(1)


@pytest.mark.parametrize(
    ("build", "number"),
    [
        (abort, signal.SIGABRT),
        pytest.param(segfault, signal.SIGSEGV, marks=pytest.mark.slow),
        pytest.param(exit_at_once, None, marks=pytest.mark.slow),
        pytest.param(kill_itself, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(kill_its_group, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(close_everything, None, marks=pytest.mark.slow),
        pytest.param(ignore_signals_and_exit, None, marks=pytest.mark.slow),
    ],
)
def test_a_builder_that_brings_its_process_down_has_crashed(shop, build, number):
    outcome = shop.outcome(build)

    assert type(outcome.error) is BackendCrashedError
    assert outcome.error.signal == number
    assert "'build'" in outcome.error.reason
    assert shop.is_well()


def test_a_crash_says_by_which_signal_and_what_was_printed_last(shop):
    attempt, outcome = shop.attempt(shop.backend_of(segfault))

    assert "SIGSEGV" in str(outcome.error)
    assert "about to read address 0" in str(outcome.error)
    assert "about to read address 0" in attempt.log.read_text()


# ------------------------------------------------------------------------------------------- it never comes back


def loop_in_python(job):
    while True:
        pass


def loop_in_c(job):
    # Takes longer than the age of the universe, in C, with the GIL.
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleep(job):
    time.sleep(3600)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(loop_in_python, marks=pytest.mark.slow),
        loop_in_c,
        pytest.param(sleep, marks=pytest.mark.slow),
    ],
)
def test_a_builder_that_never_returns_is_ended_at_its_limit(shop, build):
    assert shop.is_well()  # the worker is there: what follows is the candidate's own time
    started = time.monotonic()
    outcome = shop.outcome(build, seconds=1.0)

    assert time.monotonic() - started >= 1.0
    assert type(outcome.error) is BackendTimeoutError
    assert outcome.error.seconds == 1.0
    assert "'build'" in outcome.error.reason
    assert shop.is_well()


# --------------------------------------------------------------------------------- processes that it leaves behind


def spawn_and(file, then):
    """Leave processes behind that have a session of their own and no living parent."""

    def build(job):
        def note():
            with open(file, "a") as sink:  # noqa: PTH123
                sink.write(f"{os.getpid()}\n")

        note()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                note()
                time.sleep(3600)
            os._exit(0)
        if os.fork() == 0:
            note()
            time.sleep(3600)
        while len(open(file).read().split()) < 3:  # noqa: PTH123, SIM115
            time.sleep(0.01)
        then()

    return build


@pytest.mark.parametrize("then", [os.abort, pytest.param(lambda: time.sleep(3600), marks=pytest.mark.slow)])
def test_nothing_that_it_started_is_alive_afterwards(shop, pids, then):
    assert shop.is_well()
    shop.outcome(spawn_and(pids.file, then), seconds=5.0)

    pids.end_within(2.0, 3)


def test_nothing_is_alive_either_when_it_kills_the_guard(shop, pids):
    assert shop.is_well()

    def kill_the_guard():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)

    outcome = shop.outcome(spawn_and(pids.file, kill_the_guard))

    assert type(outcome.error) is BackendCrashedError
    pids.end_within(2.0, 3)
    assert shop.is_well()


def return_in_two_processes(job):
    os.fork()
    return job.forward


def test_a_process_that_was_forked_by_mistake_does_not_answer_for_the_worker(shop):
    assert shop.outcome(return_in_two_processes).error is None
    assert shop.is_well()


# ----------------------------------------------------------------------------------------------- memory and output


def eat_memory(job):
    eaten = []
    while True:
        eaten.append(bytearray(16 << 20))
        time.sleep(0.002)


def eat_memory_in_children(job):
    if os.fork() == 0:
        eat_memory(job)
    time.sleep(3600)


def raise_memory_error(job):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("build", [eat_memory, pytest.param(eat_memory_in_children, marks=pytest.mark.slow)])
def test_a_builder_that_eats_memory_is_ended_at_its_limit(shop, build):
    outcome = shop.outcome(build, memory_bytes=1_200_000_000, seconds=120.0)

    assert type(outcome.error) is BackendMemoryError
    assert "the limit is 1.2 GB" in outcome.error.reason
    assert shop.is_well()


def test_a_builder_that_runs_out_of_memory_is_tried_once_more_in_a_fresh_worker(shop, pids):
    def build(job):
        with pids.file.open("a") as sink:
            sink.write(f"{os.getpid()}\n")
        raise_memory_error(job)

    outcome = shop.outcome(build)

    assert type(outcome.error) is BackendMemoryError
    first, second = pids.read(2)
    assert first != second


def flood(job):
    for _ in range(1000):
        os.write(1, b"x" * 100_000)
    print("the end of it")
    return job.forward


def test_a_flood_of_output_is_kept_in_part(shop):
    attempt, outcome = shop.attempt(shop.backend_of(flood))

    assert outcome.error is None
    assert attempt.log.stat().st_size < 8 << 20
    text = attempt.log.read_text()
    assert "bytes of output are left out" in text
    assert text.endswith("the end of it\n")


# -------------------------------------------------------------------------------------- failures of the ordinary kind


def divide(job):
    return 1 / 0


def refuse(job):
    raise BackendUnsupportedError("a backend", "it is not for this")


def leave(job):
    sys.exit(3)


class StubbornError(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def raise_stubborn(job):
    raise StubbornError("no", "way")


def test_an_ordinary_exception_comes_back_as_itself(shop):
    assert type(shop.outcome(divide).error) is ZeroDivisionError
    refused = shop.outcome(refuse).error
    assert type(refused) is BackendUnsupportedError
    assert refused.reason == "it is not for this"


@pytest.mark.parametrize(("build", "words"), [(leave, "SystemExit: 3"), (raise_stubborn, "StubbornError: no way")])
def test_any_other_exception_comes_back_in_words(shop, build, words):
    error = shop.outcome(build).error

    assert type(error) is BackendBuildError
    assert words in str(error)


def test_the_worker_is_kept_after_a_refusal_and_put_back_as_it_was(shop, pids):
    def misbehave(job):
        with pids.file.open("a") as sink:
            sink.write(f"{os.getpid()}\n")
        os.chdir("/")
        os.environ["LEFT_BEHIND"] = "1"
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(1)
        sys.stdout.close()
        raise BackendUnsupportedError("misbehave", "no")

    def look(job):
        with pids.file.open("a") as sink:
            sink.write(f"{os.getpid()}\n")
        time.sleep(1.5)
        found = (os.getcwd(), os.environ.get("LEFT_BEHIND"), torch.get_default_dtype(), torch.get_num_threads())  # noqa: PTH109
        raise BackendUnsupportedError("look", f"{found} {signal.getsignal(signal.SIGTERM).name}")

    shop.outcome(misbehave)
    error = shop.outcome(look).error

    assert error.reason == f"{(os.getcwd(), None, torch.float32, torch.get_num_threads())} SIG_DFL"  # noqa: PTH109
    first, second = pids.read(2)
    assert first == second


def test_after_a_failed_build_comes_a_fresh_worker(shop, pids):
    def fail(job):
        with pids.file.open("a") as sink:
            sink.write(f"{os.getpid()}\n")
        raise ValueError("half-way")

    assert isinstance(shop.outcome(fail).error, ValueError)
    shop.outcome(fail)

    first, second = pids.read(2)
    assert first != second


@pytest.mark.parametrize("then", ["fails", "refuses", "succeeds"])
def test_what_a_builder_left_in_its_worker_is_not_held_against_the_next_one(shop, then):
    def poison(job):
        before = torch.nn.functional.linear
        torch.nn.functional.linear = lambda *args, **kwargs: 2 * before(*args, **kwargs)
        if then == "succeeds":
            return lambda *args: None
        raise (ValueError if then == "fails" else lambda text: BackendUnsupportedError("poison", text))("half-way")

    def right(job):
        return job.forward

    shop.outcome(poison)

    assert shop.outcome(right).error is None


def test_failures_cost_this_process_neither_memory_nor_file_descriptors(shop, count):
    process = psutil.Process()
    for _ in range(5):
        shop.outcome(divide)
    assert shop.outcome(abort).error
    gc.collect()
    files, memory = process.num_fds(), process.memory_info().rss

    for _ in range(count(15, 50)):
        shop.outcome(divide)
    for _ in range(count(1, 10)):
        shop.outcome(abort)

    gc.collect()
    assert process.num_fds() == files
    assert process.memory_info().rss < memory + (20 << 20)
    assert sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children()) == 0
