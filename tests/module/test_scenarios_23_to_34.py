"""Scenarios 23 to 34 of the list, by number, with real backends where a fake one would hide the point.

Scenario 24 stands with the real libraries, 32 and 34 with the many calls.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aitune.torch as ait
from aitune.exceptions import AITuneError
from aitune.testing import FunctionBackend
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend, TorchEagerBackend, TorchInductorJitBackend

X = torch.ones(2, 4)


def engine_calls(handle):
    return sum(handle.stats.engine_calls.values())


class Counting(nn.Module):
    """Counts its calls and appends to a cache, in buffers, and in plain attributes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", torch.zeros(8, 4))
        self.steps = 0
        self.history = []

    def forward(self, x):
        self.calls += 1
        self.cache[self.steps % 8] = x[0]
        self.steps += 1
        self.history.append(self.steps)
        return self.inner(x) + self.cache.sum(0)


@pytest.mark.parametrize("backend", [TorchEagerBackend(), OpenVINOBackend(), ONNXRuntimeBackend()], ids=repr)
def test_scenario_23_state_is_updated_once_a_call_and_tuning_leaves_none_behind(tune, backend):
    model, twin = Counting().eval(), None
    state, plain = copy.deepcopy(model.state_dict()), (model.steps, list(model.history))
    twin = copy.deepcopy(model)
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "counting", strategy.enable_find_max_batch_size(False)))
    result = ait.tune(model, [torch.randn(4) for _ in range(4)])
    assert (model.steps, model.history) == plain
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    if not isinstance(backend, TorchEagerBackend):
        (graph,) = result.modules["counting"].graphs
        assert graph.chosen == "original"
    with torch.no_grad():
        for number in range(1, 6):
            torch.testing.assert_close(model(X * number), twin(X * number))
            assert int(model.calls) == model.steps == len(model.history) == number
    assert handle.stats.calls in (0, 5)


def skipping(job):
    """Return an engine that computes the right answer and updates nothing."""
    twin = copy.deepcopy(job.module)

    def run(x):
        for name in ("calls", "cache"):
            getattr(twin, name).copy_(getattr(job.module, name))
        twin.steps = job.module.steps
        return twin._call_impl(x)

    return run


def test_scenario_23_a_candidate_that_skips_an_update_is_rejected(tune):
    model = Counting().eval()
    with pytest.raises(AITuneError, match=r"state|attribute|buffer|calls"):
        tune(model, FunctionBackend(skipping), X)
    model(X)
    assert int(model.calls) == model.steps == 2  # the recorded call and this one


class Remembering(nn.Module):
    """Keeps its last output in an attribute that others read."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.last = None

    def forward(self, x):
        self.last = self.inner(x)
        return self.last * 2


def test_scenario_23_a_candidate_that_leaves_an_attribute_unset_is_rejected(tune):
    model = Remembering().eval()

    def make(job):
        twin = copy.deepcopy(job.module.inner)
        return lambda x: twin(x) * 2

    with pytest.raises(AITuneError):
        tune(model, FunctionBackend(make), X)
    with torch.no_grad():
        assert torch.equal(model(X), model.last * 2)


CHANGES = {
    "load_state_dict": (lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}), 1),
    "assign": (lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True), 1),
    "copy_": (lambda m: m.weight.data.copy_(torch.eye(4)), 50),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", [OpenVINOBackend(), TorchEagerBackend()], ids=repr)
def test_scenario_25_changed_weights_are_in_the_next_answer(serve, backend, change):
    model = nn.Linear(4, 4).eval()
    handle = serve(model, backend, X)
    old = model(X)
    assert engine_calls(handle) == 1
    apply, calls = CHANGES[change]
    apply(model)
    for _ in range(calls):
        new = model(X)
    torch.testing.assert_close(new, model._call_impl(X))
    assert not torch.allclose(new, old)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", [ONNXRuntimeBackend(), TorchInductorJitBackend()], ids=repr)
def test_scenario_25_changed_weights_are_in_the_next_answer_of_slower_builders(serve, backend, change):
    test_scenario_25_changed_weights_are_in_the_next_answer(serve, backend, change)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 64)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5, training=True)


@pytest.mark.parametrize("kind", ["dropout in train()", "F.dropout(training=True) in eval()"])
def test_scenario_26_randomness_is_neither_wrong_nor_switched_off(kind, quick, unchanged_torch_state):
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)).train() if "train()" in kind else Noisy().eval()
    backends = [
        TorchEagerBackend(),
        FunctionBackend(
            lambda job: lambda x: job.module[0](x) if isinstance(job.module, nn.Sequential) else job.module.inner(x)
        ),
    ]
    for backend, good in zip(backends, (True, False), strict=True):
        strategy = ait.OneBackendStrategy(backend, profiling_config=quick).enable_performance_validation(False)
        stand_in = ait.Module(model, "noisy", strategy.enable_find_max_batch_size(False))
        samples = [torch.randn(4) for _ in range(4)]
        with unchanged_torch_state():
            result = ait.tune(stand_in, samples)
        (trial,) = result.modules["noisy"].graphs[0].trials
        assert (trial.verdict is ait.Verdict.accepted) is good, trial
        assert good or trial.verdict in (ait.Verdict.random, ait.Verdict.wrong)
        with torch.no_grad():
            torch.manual_seed(3)
            answer = model(X)
            torch.manual_seed(3)
            assert torch.equal(answer, model._call_impl(X))
            assert not torch.equal(model(X), model(X))
        stand_in.untune()


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = {"size": 4}
        self.inner = nn.Linear(4, 4)

    def encode(self, x):
        return self.inner(x)

    def decode(self, x):
        return self(x) - 1

    def forward(self, x):
        return self.encode(x) + 1


@pytest.mark.parametrize("by", ["module", "stand-in"])
def test_scenario_27_names_attributes_types_and_methods_are_as_before(serve, frozen, by):
    model = Coder().eval()
    before = list(model.state_dict()), [name for name, _ in model.named_parameters()], model.config
    decoded = model.decode(X)
    handle = serve(model, frozen, X)
    seen = model if by == "module" else _stand_in(handle)
    assert (list(seen.state_dict()), [name for name, _ in seen.named_parameters()], seen.config) == before
    assert isinstance(seen, Coder)
    assert torch.equal(seen.decode(X), decoded)
    assert torch.equal(seen.encode(X), model.inner(X))
    assert engine_calls(handle) == 1


def _stand_in(handle):
    """Return a stand-in for a module that is served already, without wrapping it anew."""
    import wrapt

    stand_in = ait.Module.__new__(ait.Module)
    wrapt.CallableObjectProxy.__init__(stand_in, handle.module)
    stand_in._self_handle = handle
    return stand_in


@pytest.mark.parametrize("place", ["root", "child"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_scenario_28_hooks_from_before_and_after_tuning_fire_once(tune, place, when):
    model, fired = Coder().eval(), []

    def register():
        target = model if place == "root" else model.inner
        target.register_forward_pre_hook(lambda *call: fired.append("pre"))
        target.register_forward_hook(lambda *call: fired.append("post"))

    if when == "before":
        register()
        with pytest.raises(AITuneError, match="hooks"):  # no engine can be had while they are there
            tune(model, FunctionBackend(lambda job: copy.deepcopy(job.module.inner)), X, correct=False)
    else:
        tune(model, TorchEagerBackend(), X)
        register()
    fired.clear()
    model(X)
    assert fired == ["pre", "post"]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_scenario_29_copies_and_pickles_work_and_leave_the_original_alone(serve, frozen, way):
    model = Coder().eval()
    handle = serve(model, frozen, X)
    twin = way(model)
    with torch.no_grad():
        twin.inner.weight.zero_()
        assert not torch.equal(twin(X), model(X))
        assert torch.equal(model(X), model._call_impl(X))
    assert engine_calls(handle) == 2


def test_scenario_30_moves_and_casts_work(serve, frozen):
    model = Coder().eval()
    handle = serve(model, frozen, X)
    assert torch.equal(model.to("cpu")(X), model._call_impl(X))
    assert engine_calls(handle) == 1
    assert model.half()(X.half()).dtype is torch.float16
    assert torch.equal(model.float()(X), model._call_impl(X))
    assert model.to(torch.float64)(X.double()).dtype is torch.float64
    assert model.to("meta")(X.double().to("meta")).device.type == "meta"


@pytest.mark.parametrize("backend", [OpenVINOBackend(), TorchEagerBackend()], ids=repr)
def test_scenario_31_untune_gives_back_the_module_and_its_memory(backend, quick):
    model = Coder().eval()
    before, data = dict(model.__dict__), pickle.dumps(model)
    strategy = ait.OneBackendStrategy(backend, profiling_config=quick).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "coder", strategy.enable_find_max_batch_size(False)))
    ait.tune(model, [torch.randn(4) for _ in range(4)])
    gone = weakref.ref(model._compiled_call_impl.dispatcher)
    handle.untune()
    gc.collect()
    assert model.__dict__ == before
    assert pickle.dumps(model) == data
    assert gone() is None


@pytest.mark.parametrize("backend", [OpenVINOBackend(), TorchEagerBackend()], ids=repr)
def test_scenario_33_the_first_answer_outlives_the_second_call(serve, backend):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    serve(model, backend, X)
    first = model(X)
    kept = first.clone()
    for number in range(2, 6):
        model(X * -number)
    assert torch.equal(first, kept)
