"""``config.device_after_tuning``: the original's weights go elsewhere once engines answer its calls."""

from __future__ import annotations

import copy
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneError, CheckpointError
from aitune.testing import FunctionBackend
from aitune.torch.backend import ONNXRuntimeBackend, TorchEagerBackend, TorchInductorJitBackend

pytest.importorskip("onnxruntime")


def tuned(model, backend, device="cpu", place="meta"):
    """Tune with a setting; returns the model in its stand-in, and the result."""
    before = ait.config.device_after_tuning
    strategy = ait.FirstWinsStrategy(backends=[backend])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    wrapped = ait.Module(model, "net", strategy)
    try:
        ait.config.device_after_tuning = place
        return wrapped, ait.tune(wrapped, list(torch.randn(4, 4)), batch_sizes=[1, 3], device=device)
    finally:
        ait.config.device_after_tuning = before


def places(model):
    return {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}


def test_on_meta_engines_answer_and_the_weights_are_gone(model, caplog, monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", "process")  # the exporter holds what it exported
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = model(x)
    weight = weakref.ref(model.linear.weight)
    wrapped, result = tuned(model, ONNXRuntimeBackend())
    assert places(model) == {"meta"}
    assert weight() is None, "somebody still holds the weights"
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), expected)
    assert sum(ait.handle(wrapped).stats.engine_calls.values()) == 1
    assert any("given up" in note for note in result.notes)
    assert any("given up" in one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)


def test_on_meta_a_call_that_no_engine_was_made_for_says_what_to_do(model):
    wrapped, _ = tuned(model, ONNXRuntimeBackend())
    with pytest.raises(AITuneError, match=r"no engine was made for this call.*device_after_tuning='cpu'"):
        wrapped(torch.randn(9, 4))
    assert wrapped(torch.randn(2, 4)).shape == (2, 3), "the next one is answered"


def test_on_meta_what_needs_the_weights_says_that_they_are_gone(model, tmp_path, caplog):
    wrapped, _ = tuned(model, ONNXRuntimeBackend())
    with pytest.raises(CheckpointError, match="were given up"):
        ait.save(wrapped, tmp_path / "net.ait")
    with pytest.raises(AITuneError, match="build the model again"):
        ait.handle(wrapped).retune()
    caplog.clear()
    ait.handle(wrapped).untune()
    assert "given up" in caplog.text


@pytest.mark.parametrize("backend", [TorchEagerBackend(), TorchInductorJitBackend()], ids=lambda one: one.name)
def test_an_engine_that_runs_the_module_keeps_it_where_it_is(backend, model):
    wrapped, result = tuned(model, backend)
    assert places(model) == {"cpu"}
    assert any("runs the module itself" in note for note in result.notes)
    assert wrapped(torch.randn(9, 4)).shape == (9, 3)


def test_what_is_on_the_cpu_already_stays_there_and_is_watched(model):
    wrapped, _ = tuned(model, ONNXRuntimeBackend(), place="cpu")
    assert places(model) == {"cpu"}
    with torch.no_grad():
        model.linear.weight.zero_()
        torch.testing.assert_close(wrapped(torch.ones(2, 4)), model.linear.bias.expand(2, 3))


def test_tied_weights_stay_tied_and_those_shared_with_others_stay_theirs():
    first, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    other.weight = first.weight
    model = torch.nn.Sequential(first, torch.nn.Linear(4, 4)).eval()
    model[1].weight = first.weight
    tuned(model, ONNXRuntimeBackend())
    assert model[0].weight is model[1].weight
    assert other.weight.device.type == "cpu"


def test_module_tune_honours_it(model, monkeypatch):
    monkeypatch.setattr(ait.config, "device_after_tuning", "meta")
    strategy = ait.OneBackendStrategy(ONNXRuntimeBackend())
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    wrapped = ait.Module(model, "net", strategy)
    wrapped.enable_recording()
    for size in (1, 2):
        wrapped(torch.randn(size, 4))
    ait.handle(wrapped).tune()
    assert places(model) == {"meta"}


class Counting(torch.nn.Module):
    """Has a buffer that the original writes to for large batches alone, which no engine here serves."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if len(x) > 5:
            self.calls += 1
        return self.linear(x)


def twin(job):
    """An engine with weights of its own."""
    return copy.deepcopy(job.module).forward


@pytest.mark.gpu
def test_from_the_gpu_weights_go_to_the_cpu_and_come_back_for_other_calls(tmp_path):
    model = Counting().eval().cuda()
    x, many = torch.randn(2, 4, device="cuda"), torch.randn(10, 4, device="cuda")
    with torch.no_grad():
        expected, more = model.forward(x), model.linear(many)
    wrapped, result = tuned(model, FunctionBackend(twin), "cuda", "cpu")
    assert places(model) == {"cpu"}
    assert any("was moved to the CPU" in note for note in result.notes)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), expected)
        stats = ait.handle(wrapped).stats
        assert (sum(stats.engine_calls.values()), sum(stats.fallbacks.values())) == (1, 0)
        torch.testing.assert_close(wrapped(many), more)
    assert places(model) == {"cpu"}
    assert model.calls == 1, "what the original writes is kept"
    ait.handle(wrapped).untune()
    assert places(model) == {"cuda"}
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)


@pytest.mark.gpu
def test_while_weights_are_back_for_one_call_other_threads_get_right_answers(model):
    model.cuda()
    x, many = torch.randn(2, 4, device="cuda"), torch.randn(10, 4, device="cuda")
    with torch.no_grad():
        expected, more = model(x), model(many)
    wrapped, _ = tuned(model, FunctionBackend(twin), "cuda", "cpu")

    def calls(number):
        with torch.no_grad():
            for _ in range(200):
                torch.testing.assert_close(wrapped(many if number == 0 else x), more if number == 0 else expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))
    before = sum(ait.handle(wrapped).stats.engine_calls.values())
    with torch.no_grad():
        wrapped(x)
        wrapped(x)
    assert sum(ait.handle(wrapped).stats.engine_calls.values()) > before, "the engine serves on afterwards"
    assert places(model) == {"cpu"}
