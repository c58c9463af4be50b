"""The contract suite passes a backend that is right, and fails one for each fault that it is there to find."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
import unittest
from dataclasses import dataclass

import pytest
import torch

from aitune.exceptions import BackendUnsupportedError
from aitune.testing import BackendContract, standard_cases
from aitune.testing.fresh_process import FreshProcessError
from aitune.testing.modules import Branching
from aitune.torch.backend import Backend, BackendConfig, Engine, Requirement
from aitune.torch.graph.accessor import compile_call
from aitune.torch.trial import PRECISIONS

LEFT = []  # what faulty backends hold on to


@dataclass(frozen=True)
class PlainBackendConfig(BackendConfig):
    """``fault`` names what is wrong with the backend; nothing by default."""

    fault: str = ""


class PlainBackend(Backend[PlainBackendConfig]):
    """Runs a copy of the module."""

    config_class = PlainBackendConfig

    def build(self, job):
        fault = self.config.fault
        before(fault, job)
        return PlainEngine(copy.deepcopy(job.module), job, fault)

    def load(self, job, folder):
        state = torch.load(folder / "weights", weights_only=False) if self.config.fault == "pickle" else None
        engine = self.build(job)
        raw = bytearray((folder / "raw").read_bytes())
        engine.module.load_state_dict(state or {"layers.0.bias": torch.frombuffer(raw, dtype=torch.float32)}, False)
        return engine


class PlainEngine(Engine):
    def __init__(self, module, job, fault):
        self.module, self.job, self.fault = module, job, fault
        self.calls, self.memory, self.busy = 0, None, 0
        self.precision = "exact" if fault == "precision" else PRECISIONS[1]
        self.call = compile_call(job.graph, lambda tensors: self.module(*tensors)) if fault == "form" else module

    def run(self, *args, **kwargs):
        self.calls += 1
        args = during(self, args)
        if self.fault == "form" and kwargs:
            raise TypeError("positional arguments only")
        return after(self, self.module(*args, **kwargs), args)

    def close(self):
        if self.fault == "close" and self.module is None:
            raise RuntimeError("closed already")
        if self.fault == "leak":
            LEFT.append([p.detach().clone() for p in self.module.parameters()])
        self.module = self.job = self.call = None

    def save(self, folder):
        torch.save(self.module.state_dict(), folder / "weights")
        bias = self.module.layers[0].bias.detach() + (self.fault == "kept")
        (folder / "raw").write_bytes(bias.numpy().tobytes())


def before(fault, job):
    """What a faulty build does to the module and the process."""
    if fault == "refuses":
        raise BackendUnsupportedError("PlainBackend", "not today")
    if fault == "buffer" and list(job.module.buffers()):
        next(job.module.buffers()).add_(1)
    if fault == "hook":
        job.module.register_forward_hook(lambda *_: None)
    if fault == "training":
        job.module.train()
    if fault == "excepthook":
        sys.excepthook = lambda *_: None
    if fault == "prints":
        os.write(1, b"compiling\n")
    if fault == "sample":
        job.samples[0].args[0].add_(1)
    if fault == "global":
        LEFT.append(job.module)
    if fault == "crash" and isinstance(job.module, Branching):
        os.kill(os.getpid(), signal.SIGSEGV)


def during(engine, args):
    """What a faulty engine does before it computes."""
    if engine.fault == "strides":
        return tuple(x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in args)
    if engine.fault == "threads":
        engine.memory = args
        time.sleep(0.001)
        return engine.memory
    return args


def after(engine, y, args):
    """What a faulty engine does to its output."""
    if engine.fault == "wrong":
        y = y * 1.01
    if engine.fault == "drifts":
        y = y * (1 + 1e-4 * engine.calls)
    if engine.fault == "alias":
        engine.memory = y if engine.memory is None or engine.memory.shape != y.shape else engine.memory.copy_(y)
        y = engine.memory
    if engine.fault == "input":
        args[0].add_(1)
    if engine.fault == "inference" and torch.is_inference_mode_enabled():
        y = y + 1
    if engine.fault == "speaks":
        os.write(2, b"calling\n")
    if engine.fault == "rng":
        torch.rand(1)
    return y


class PlainContract(BackendContract):
    fault = ""
    required = ("mlp", "conv")

    def make_backend(self):
        return PlainBackend(PlainBackendConfig(self.fault))

    def cases(self):
        return [case for case in standard_cases() if case.name in ("mlp", "conv")]


class TestPlain(PlainContract):
    """No fault at all."""


def fails(method, kind=AssertionError, **attributes):
    """Run one test of the suite over a faulty backend; it must raise."""
    contract = type("Contract", (PlainContract,), attributes)
    contract.setup_class()
    try:
        test = getattr(contract(), method)
        wants = test.__code__.co_varnames[1 : test.__code__.co_argcount]
        given = {"case": contract().cases()[attributes.get("fault") == "buffer"], "capfd": None}
        with pytest.raises(kind) as caught:
            test(**{name: attributes.get(name) or given[name] for name in wants})
        return str(caught.value)
    finally:
        contract.teardown_class()
        LEFT.clear()


@pytest.mark.parametrize(
    ("fault", "method", "says"),
    [
        ("buffer", "test_building_changes_nothing", "running_mean"),
        ("hook", "test_building_changes_nothing", "hook"),
        ("training", "test_building_changes_nothing", "training"),
        ("excepthook", "test_building_changes_nothing", "exception hook"),
        ("prints", "test_building_changes_nothing", "compiling"),
        ("sample", "test_building_changes_nothing", "a sample"),
        ("refuses", "test_the_required_cases_are_served", "not today"),
        ("wrong", "test_it_computes_what_the_module_computes", "relative error"),
        ("drifts", "test_equal_inputs_give_equal_outputs", "is off by"),
        ("alias", "test_outputs_are_never_overwritten", "when the engine was called again"),
        ("input", "test_inputs_are_not_changed", "inputs"),
        ("strides", "test_strides_of_inputs_do_not_matter", ""),
        ("inference", "test_gradient_modes_do_not_matter", "is off by"),
        ("precision", "test_engines_declare_their_facts", "'exact'"),
        ("threads", "test_threads_do_not_disturb_each_other", ""),
        ("global", "test_closing_lets_go", "holds the module"),
        ("leak", "test_closing_gives_memory_back", "MB are lost"),
    ],
)
def test_a_faulty_engine_is_found(fault, method, says, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert says in fails(method, fault=fault)


def test_an_engine_that_speaks_or_draws_random_numbers_is_found(capfd):
    assert "calling" in fails("test_calling_changes_nothing", fault="speaks", capfd=capfd)
    assert "random number" in fails("test_calling_changes_nothing", fault="rng", capfd=capfd)


def test_an_engine_that_raises_is_found():
    fails("test_every_form_of_a_call_is_taken", TypeError, fault="form")
    fails("test_closing_lets_go", RuntimeError, fault="close")


def test_an_engine_that_loads_with_pickle_or_other_weights_is_found():
    assert "must not unpickle" in fails("test_a_kept_engine_answers_the_same_in_a_fresh_process", fault="pickle")
    assert "is off by" in fails("test_a_kept_engine_answers_the_same_in_a_fresh_process", fault="kept")


def test_a_backend_that_brings_the_process_down_is_found():
    said = fails("test_what_it_cannot_serve_ends_in_an_exception", FreshProcessError, fault="crash")
    assert f"signal {signal.SIGSEGV.value}" in said


class NeedsItsLibrary(PlainBackend):
    requires = (Requirement("hypothesis", "dev"),)

    def __init__(self, config=None):
        import hypothesis

        assert hypothesis
        super().__init__(config)


class NoValue(PlainBackend):
    devices = "cpu"

    def unsuitable(self, job):
        return None

    def describe(self):
        return f"{self.name}({object()})"

    __hash__ = object.__hash__


def test_a_recipe_that_is_no_value_is_found():
    attributes = {"make_backend": lambda self: NoValue()}
    for method, says in {
        "test_it_pickles_and_equals_itself": "hash",
        "test_it_describes_itself_without_defaults": "address",
        "test_its_facts_are_declared": "no tuple",
        "test_it_says_without_building_what_it_cannot_serve": "no reason",
    }.items():
        assert says in fails(method, **attributes)


def test_a_recipe_that_needs_its_library_to_be_named_is_found():
    fails(
        "test_constructing_it_needs_neither_library_nor_device",
        ImportError,
        make_backend=lambda self: NeedsItsLibrary(),
    )


def test_what_is_not_installed_is_skipped_with_the_reason():
    class Missing(PlainBackend):
        requires = (Requirement("no_such_library", "nothing"),)

    for method in ("test_the_required_cases_are_served", "test_closing_lets_go"):
        said = fails(method, unittest.SkipTest, make_backend=lambda self: Missing())
        assert "no_such_library is not installed" in said


def test_a_device_that_is_not_there_is_skipped():
    said = fails("test_building_changes_nothing", unittest.SkipTest, device="xpu")
    assert "there is no xpu device" in said
