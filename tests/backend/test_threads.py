"""Engines work with as many threads as torch had when they were built, and their threads rest between calls."""

from __future__ import annotations

import importlib.util
import os
import time

import pytest
import torch

import aitune.torch as ait
from aitune.testing.fresh_process import in_fresh_process
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend

BACKENDS = [ONNXRuntimeBackend(), OpenVINOBackend()]


def needs(backend):
    missing = [one.library for one in backend.requires if importlib.util.find_spec(one.library) is None]
    return pytest.param(backend, id=backend.describe(), marks=pytest.mark.skipif(bool(missing), reason=f"no {missing}"))


def at_work(backend, numbers):
    """Call an engine for a while, then leave it alone; in a process of its own, whose threads are its own.

    Returns:
        For each number of threads: how many had at least a fiftieth of the processor time of the calls, and the
        processor time, in seconds, that the process took in half a second without calls.
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
    time.sleep(0.05)  # the end of the last call may take a moment
    start = os.times()
    time.sleep(0.5)
    end = os.times()
    return sum(seconds >= sum(spent) / 50 for seconds in spent), end.user + end.system - start.user - start.system


@pytest.mark.parametrize("backend", [needs(backend) for backend in BACKENDS])
def test_as_many_threads_work_as_torch_had_and_none_is_busy_between_calls(backend):
    for number, (working, idle) in zip((1, 2), in_fresh_process(at_work, backend, (1, 2)), strict=True):
        assert working == number
        assert idle < 0.1, f"{idle:.2f} s of processor time in half a second without calls"
