"""Engines work with as many threads as torch had when they were built, and their threads rest between calls."""

from __future__ import annotations

import importlib.util
import time

import pytest
import torch

import aitune.torch as ait
from aitune.testing.fresh_process import in_fresh_process
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend

# Left alone, ONNX Runtime spins for some 10 ms after each call, half of a pause. Others take a moment to fall asleep.
PAUSES, PAUSE = 40, 0.02
BACKENDS = [ONNXRuntimeBackend(), OpenVINOBackend()]


def needs(backend):
    missing = [one.library for one in backend.requires if importlib.util.find_spec(one.library) is None]
    return pytest.param(backend, id=backend.describe(), marks=pytest.mark.skipif(bool(missing), reason=f"no {missing}"))


def at_work(backend, numbers):
    """Call an engine for a while, with pauses; in a process of its own, whose threads are its own.

    Returns:
        For each number of threads: how many had at least a fiftieth of the processor time of the calls, and the
        processor time that all threads took in pauses, as a part of the pauses.
    """
    import psutil

    process, width = psutil.Process(), 1024
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width), torch.nn.ReLU()] * 4).eval()
    found = []
    for number in numbers:
        torch.set_num_threads(number)
        # Neither checked nor raced: the engine is what matters here.
        strategy = ait.OneBackendStrategy(backend, profiling_config=ait.ProfilingConfig(max_seconds=0.01))
        strategy.enable_performance_validation(False).enable_find_max_batch_size(False).enable_correctness_check(False)
        wrapped = ait.Module(model, "m", strategy)
        ait.tune(wrapped, list(torch.randn(4, width)), batch_sizes=[32, 64], device="cpu").raise_for_failures()
        assert ait.handle(wrapped).state is ait.ModuleState.TUNED
        found.append(worked_and_idled(process, wrapped, torch.randn(64, width)))
    return found


def worked_and_idled(process, call, x):
    before = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    end = time.monotonic() + 1.0
    with torch.no_grad():
        while time.monotonic() < end:
            call(x)
    after = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    spent = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
    idle = 0.0
    for _ in range(PAUSES):
        with torch.no_grad():
            call(x)
        start = time.process_time()
        time.sleep(PAUSE)
        idle += time.process_time() - start
    return sum(seconds >= sum(spent) / 50 for seconds in spent), idle / (PAUSES * PAUSE)


@pytest.mark.parametrize("backend", [needs(backend) for backend in BACKENDS])
def test_as_many_threads_work_as_torch_had_and_none_is_busy_between_calls(backend):
    for number, (working, idle) in zip((1, 2), in_fresh_process(at_work, backend, (1, 2)), strict=True):
        assert working == number
        assert idle < 0.15, f"{number} threads: the process is busy for {idle:.0%} of the time between calls"
