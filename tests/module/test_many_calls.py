"""Many threads, many calls: right answers, exact counts, flat memory."""

from __future__ import annotations

import copy
import gc
import threading

import psutil
import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch.backend import (
    ONNXRuntimeBackend,
    OpenVINOBackend,
    TorchEagerBackend,
    TorchInductorJitBackend,
)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def twin_of(job):
    return copy.deepcopy(job.module)._call_impl


def alone(job):
    """An engine with buffers of its own, which two calls at once would spoil."""
    twin, buffer = copy.deepcopy(job.module), {}

    def run(x):
        buffer["x"] = x
        answer = twin._call_impl(buffer["x"])
        assert buffer.pop("x") is x
        return answer

    return run


ENGINES = {
    "re-entrant": lambda: FunctionBackend(twin_of),
    "one at a time": lambda: FunctionBackend(alone, FunctionBackendConfig(reentrant=False)),
    "onnxruntime": ONNXRuntimeBackend,
    "openvino": OpenVINOBackend,
    "eager": TorchEagerBackend,
    "inductor": TorchInductorJitBackend,
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("inductor",)]
QUICK = [name for name in ENGINES if name != "inductor"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", [*QUICK, *SLOW])
def test_scenario_32_threads_with_mixed_shapes_get_right_answers_and_exact_counts(serve, engine, count):
    calls_each, threads_in_all = count(50, 2000), count(8, 16)
    model = network()
    handle = serve(model, ENGINES[engine](), torch.randn(1, 8), torch.randn(6, 8))
    inputs = [torch.randn(batch, 8) for batch in (1, 2, 3, 6, 7, 9)]  # the last two are the original's
    with torch.no_grad():
        expected = [model._call_impl(x) for x in inputs]
    wrong, errors = [], []
    gate = threading.Barrier(threads_in_all)

    def work(seed):
        gate.wait()
        try:
            with torch.no_grad():
                for i in range(calls_each):
                    which = (seed + i) % len(inputs)
                    if not torch.allclose(model(inputs[which]), expected[which], rtol=1e-4, atol=1e-5):
                        wrong.append(which)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(threads_in_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plan = [(seed + i) % len(inputs) for seed in range(threads_in_all) for i in range(calls_each)]
    assert (wrong, errors) == ([], [])
    assert sum(handle.stats.engine_calls.values()) == sum(1 for which in plan if which < 4)
    assert handle.stats.fallbacks == {"range": sum(1 for which in plan if which >= 4)}


def test_modes_that_differ_between_threads_are_each_threads_own(serve):
    model = network()
    handle = serve(model, FunctionBackend(twin_of), torch.randn(2, 8))
    x = torch.randn(2, 8)
    contexts = {
        "plain": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "gradients": torch.enable_grad,
    }
    wanted = {
        "plain": torch.float32,
        "inference": torch.float32,
        "autocast": torch.bfloat16,
        "gradients": torch.float32,
    }
    wrong = []

    def work(name):
        for _ in range(100):
            with contexts[name]():
                answer = model(x)
            if answer.dtype is not wanted[name] or answer.is_inference() is not (name == "inference"):
                wrong.append((name, answer.dtype, answer.is_inference()))

    threads = [threading.Thread(target=work, args=(name,)) for name in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert handle.stats.fallbacks == {"autocast": 100}


def test_an_engine_that_is_entered_from_within_itself_does_not_wait_for_itself(serve):
    class Twice(nn.Module):
        def forward(self, x, again: bool = True):
            return self(x + 1, False) if again else x * 2

    model = Twice().eval()
    backend = FunctionBackend(lambda job: job.forward, FunctionBackendConfig(reentrant=False, live_weights=True))
    handle = serve(model, backend, (torch.ones(2), True), (torch.ones(2), False))
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 4.0))
    assert handle.stats.calls >= 1


def test_weights_that_change_while_others_call_are_never_mixed(serve):
    """Every answer is that of the old or of the new weights."""
    model = nn.Linear(4, 1, bias=False).eval()
    with torch.no_grad():
        model.weight.fill_(0.0)
    serve(model, FunctionBackend(twin_of), torch.ones(2, 4))
    seen, stop = set(), threading.Event()

    def work():
        with torch.no_grad():
            while not stop.is_set():
                seen.add(float(model(torch.ones(2, 4))[0]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for value in (0.25, 0.5, 0.75):
        model.weight = nn.Parameter(torch.full((1, 4), value))
    with torch.no_grad():
        assert float(model(torch.ones(2, 4))[0]) == 3.0
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= {0.0, 1.0, 2.0, 3.0}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "eager", *SLOW])
def test_scenario_34_memory_is_flat_over_many_calls(serve, engine, count):
    model = network()
    serve(model, ENGINES[engine](), torch.randn(1, 8), torch.randn(6, 8))
    inputs = [torch.randn(batch, 8) for batch in (1, 2, 3, 6, 9)]
    process, points = psutil.Process(), []
    calls, settled = count(1500, 10_000), count(500, 2_000)
    with torch.no_grad():
        for number in range(calls):
            model(inputs[number % len(inputs)])
            if number == settled:
                gc.collect()
            if number >= settled and number % 100 == 0:
                points.append((number, process.memory_info().rss))
    growth = _slope(points) * (calls - settled)
    assert growth < 1 << 20, f"{growth / 1024:.0f} KiB over {calls - settled} calls"


def _slope(points):
    """Return the growth a call in bytes: the median slope of all pairs of points, which jumps do not move."""
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for i, earlier in enumerate(points)
        for later in points[i + 1 :]
    )
    return slopes[len(slopes) // 2]


def test_memory_is_flat_over_calls_that_the_original_answers(serve, count):
    """Changed weights, ranges, hooks and modes each take a way of their own."""
    model = network()
    serve(model, FunctionBackend(twin_of), torch.randn(2, 8))
    process, points, x = psutil.Process(), [], torch.randn(2, 8)
    calls, settled = count(1500, 10_000), count(500, 2_000)
    doubled = {name: value * 2 for name, value in model.named_parameters()}
    with torch.no_grad():
        for number in range(calls):
            model(torch.randn(5, 8))
            torch.func.functional_call(model, doubled, (x,))
            with model[0].register_forward_hook(lambda *call: None):
                model(x)
            model.train()(x)
            model.eval()
            if number == settled:
                gc.collect()
            if number >= settled and number % 100 == 0:
                points.append((number, process.memory_info().rss))
    assert _slope(points) * (calls - settled) < 1 << 20


def test_tuning_again_and_again_leaves_nothing_behind(tune):
    model = network()
    backend = FunctionBackend(twin_of)
    handle = tune(model, backend, torch.randn(2, 8))
    process, points = psutil.Process(), []
    for number in range(12):
        handle.retune()
        gc.collect()
        if number >= 4:
            points.append((number, process.memory_info().rss))
    assert backend.open_engines == 1
    assert _slope(points) < 256 << 10
    assert len(ait.handle(model).graph_specs) == 1
