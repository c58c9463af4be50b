"""The stand-in is the module; the handle tunes and restores it."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.testing import FunctionBackend


class Encoder(torch.nn.Module):
    name = "the encoder's own"

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.state = {"step": 1}

    def forward(self, x):
        return self.inner(x)

    def encode(self, x):
        return self(x) + 1


X = torch.ones(2, 3)


def marked(job):
    return lambda x: job.forward(x)


@pytest.fixture
def backend():
    return FunctionBackend(marked)


@pytest.fixture
def wrapped(backend):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    return ait.Module(Encoder().eval(), "encoder", strategy.enable_find_max_batch_size(False))


@pytest.fixture
def tuned(wrapped):
    ait.tune(wrapped, [torch.randn(3) for _ in range(4)])
    return wrapped


def test_the_modules_own_attributes_win_and_the_handle_has_the_others(wrapped):
    assert wrapped.name == "the encoder's own"
    assert wrapped.state == {"step": 1}
    assert ait.handle(wrapped).name == "encoder"
    assert ait.handle(wrapped).state is ait.ModuleState.INIT
    assert wrapped.stats.calls == 0
    with pytest.raises(AttributeError, match="'Encoder' object has no attribute 'nonsense'"):
        _ = wrapped.nonsense


def test_a_stand_in_is_a_child_like_the_module(tuned):
    parent = torch.nn.Sequential(tuned, torch.nn.ReLU())
    assert list(parent.state_dict()) == ["0.inner.weight", "0.inner.bias"]
    assert [name for name, _ in parent.named_modules()] == ["", "0", "0.inner", "1"]
    parent.double()
    assert tuned.inner.weight.dtype is torch.float64
    parent.train()
    assert tuned.training


def test_setting_an_attribute_sets_it_on_the_module(wrapped):
    wrapped.threshold = 3
    assert wrapped.__wrapped__.threshold == 3


def test_other_methods_run_tuned(tuned):
    assert torch.equal(tuned.encode(X), tuned.inner(X) + 1)
    assert ait.handle(tuned).stats.engine_calls == {"FunctionBackend()": 1}


def test_untune_restores_the_module_byte_for_byte(wrapped, backend):
    module = wrapped.__wrapped__
    before, weights = dict(module.__dict__), pickle.dumps(module)
    ait.tune(wrapped, [torch.randn(3) for _ in range(4)])
    assert backend.open_engines == 1
    wrapped.untune()
    assert backend.open_engines == 0
    assert module.__dict__ == before
    assert pickle.dumps(module) == weights
    assert ait.handle(wrapped).state is ait.ModuleState.INIT


def test_deactivate_goes_round_the_engines_and_activate_back(tuned, backend):
    tuned.deactivate()
    tuned(X)
    tuned.activate()
    tuned(X)
    assert ait.handle(tuned).stats.engine_calls == {"FunctionBackend()": 1}
    assert backend.open_engines == 1


def test_activate_needs_a_tuned_module(wrapped):
    for method in (wrapped.activate, wrapped.deactivate):
        with pytest.raises(AITuneUserInputError, match="not tuned"):
            method()


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_handle_comes_back_untuned_over_its_own_copy(tuned, clone):
    other = clone(tuned)
    assert type(other) is ait.Module
    assert other.__wrapped__ is not tuned.__wrapped__
    assert ait.handle(other).state is ait.ModuleState.INIT
    assert ait.handle(other).name != ait.handle(tuned).name
    with torch.no_grad():
        tuned.inner.weight.add_(1 if clone is not copy.copy else 0)
    assert torch.is_tensor(other(X))


def test_a_pickled_module_names_nothing_of_aitune(tuned):
    assert b"aitune" not in pickle.dumps(tuned.__wrapped__).replace(b"FunctionBackend", b"")


def test_a_module_wrapped_again_is_taken_over_with_the_new_settings(tuned, backend):
    again = ait.Module(tuned, "renamed")
    assert again.__wrapped__ is tuned.__wrapped__
    assert ait.handle(tuned).name == "renamed"
    assert backend.open_engines == 0


def test_tuning_a_tuned_module_tunes_it_anew(tuned, backend):
    ait.tune(tuned, [torch.randn(3) for _ in range(4)])
    assert (backend.builds, backend.open_engines) == (2, 1)
    tuned.retune()
    assert (backend.builds, backend.open_engines) == (3, 1)


def test_retune_follows_changed_weights(tuned):
    with torch.no_grad():
        tuned.inner.weight.add_(1)
    tuned(X)
    assert ait.handle(tuned).stats.fallbacks == {"weights changed": 1}
    tuned.retune()
    tuned(X)
    assert ait.handle(tuned).stats.engine_calls == {"FunctionBackend()": 1}


def test_a_wrapped_child_inside_a_wrapped_parent_is_fine(backend):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    child = ait.Module(torch.nn.Linear(3, 3).eval(), "child", strategy)
    parent = ait.Module(torch.nn.Sequential(child, torch.nn.ReLU()).eval(), "parent", strategy)
    result = ait.tune(parent, [torch.randn(3) for _ in range(4)])
    assert set(result.modules) == {"child", "parent"}
    assert torch.is_tensor(parent(X))


def test_graph_specs_and_describe_tell_what_was_recorded(wrapped):
    wrapped.enable_recording()
    wrapped(X)
    (graph,) = wrapped.graph_specs
    assert graph.inputs.tensors[0].shape == (2, 3)
    assert "encoder: recording, OneBackendStrategy" in wrapped.describe()
    wrapped.enable_passthrough()
    assert ait.handle(wrapped).state is ait.ModuleState.PASSTHROUGH


def test_a_handle_does_not_keep_its_module_alive():
    module = torch.nn.ReLU()
    handle, gone = ait.handle(ait.Module(module)), weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    with pytest.raises(AITuneError, match="no longer exists"):
        _ = handle.module


def test_calls_of_threads_that_serve_already_are_not_recorded(wrapped, backend):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    other = ait.Module(torch.nn.Linear(3, 3).eval(), "other", strategy)
    started, stop = threading.Event(), threading.Event()

    def serve():
        while not stop.is_set():
            other(X)
            started.set()

    server = threading.Thread(target=serve)
    server.start()
    started.wait()
    try:
        result = ait.tune(wrapped, [torch.randn(3) for _ in range(4)])
    finally:
        stop.set()
        server.join()
    assert list(result.modules) == ["encoder"]
    assert ait.handle(other).state is ait.ModuleState.INIT


def test_threads_that_the_function_starts_are_recorded(wrapped):
    def func(x):
        thread = threading.Thread(target=wrapped, args=(x,))
        thread.start()
        thread.join()

    assert list(ait.tune(func, [torch.randn(3) for _ in range(4)]).modules) == ["encoder"]


def test_a_lazy_module_is_completed_by_its_first_recorded_call(backend):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    lazy = ait.Module(torch.nn.LazyLinear(2).eval(), "lazy", strategy)
    ait.tune(lazy, [torch.randn(3) for _ in range(4)])
    assert lazy(X).shape == (2, 2)
    assert ait.handle(lazy).stats.engine_calls == {"FunctionBackend()": 1}


def test_a_handle_that_was_taken_over_is_inert(wrapped, backend):
    old = ait.handle(wrapped)
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    new = ait.Module(wrapped, "new", strategy)
    ait.tune(new, [torch.randn(3) for _ in range(4)])
    old.untune()
    assert old.stats.calls == 0
    with pytest.raises(AITuneError, match="wrapped again"):
        old.enable_recording()
    new(X)
    assert ait.handle(new).stats.engine_calls == {"FunctionBackend()": 1}


def test_tunes_of_two_threads_do_not_mix(backend):
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    modules = [ait.Module(torch.nn.Linear(3, 3).eval(), name, strategy) for name in ("a", "b")]
    tuned = {}

    def tune(module):
        result = ait.tune(module, [torch.randn(3) for _ in range(4)])
        tuned[ait.handle(module).name] = list(result.modules)

    threads = [threading.Thread(target=tune, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tuned == {"a": ["a"], "b": ["b"]}
    for module in modules:
        module(X)
        assert ait.handle(module).stats.engine_calls == {"FunctionBackend()": 1}


def test_a_module_among_the_arguments_is_not_baked_in(backend):
    class Headed(torch.nn.Module):
        def forward(self, x, head):
            return head(x)

    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
    module, head = ait.Module(Headed().eval(), "headed", strategy), torch.nn.Linear(3, 2)
    result = ait.tune(lambda x: module(x, head), [torch.randn(3) for _ in range(4)])
    (graph,) = result.modules["headed"].graphs
    assert graph.chosen == "original"
    assert "Linear" in graph.notes[0]
