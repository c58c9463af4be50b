"""Code that never heard of aitune uses a tuned module as it used the module."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import gc
import inspect
import io
import logging
import os
import pickle
import threading
import weakref

import cloudpickle
import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.config = {"hidden": 4}

    def forward(self, x, scale: float = 1.0):
        """Encode."""
        return self.inner(x) * scale + self.shift

    def encode(self, x):
        return self(x).sum(-1)


X = torch.ones(2, 4)


class Marked(FunctionBackend):
    """Its engines answer eager's values, and count."""

    def __init__(self):
        self.calls = []

        def make(job):
            twin = copy.deepcopy(job.module)

            def run(*args, **kwargs):
                self.calls.append(1)
                return twin(*args, **kwargs)

            return run

        super().__init__(make)


@pytest.fixture
def marked():
    return Marked()


@pytest.fixture
def model(serve, marked):
    encoder = Encoder().eval()
    serve(encoder, marked, X)
    marked.calls.clear()
    return encoder


# ------------------------------------------------------------------------------------------ what it looks like


def test_what_can_be_seen_of_it_is_what_was_before(serve, marked):
    plain = Encoder().eval()
    before = (
        list(plain.state_dict()),
        [name for name, _ in plain.named_parameters()],
        [name for name, _ in plain.named_modules()],
        set(dir(plain)),
        repr(plain),
        str(inspect.signature(plain.forward)),
        plain.forward.__doc__,
        plain.config,
    )
    serve(plain, marked, X)
    after = (
        list(plain.state_dict()),
        [name for name, _ in plain.named_parameters()],
        [name for name, _ in plain.named_modules()],
        set(dir(plain)),
        repr(plain),
        str(inspect.signature(plain.forward)),
        plain.forward.__doc__,
        plain.config,
    )
    assert after == before
    assert type(plain) is Encoder


def test_the_stand_in_looks_like_it_too(model):
    stand_in = ait.Module(model)
    assert isinstance(stand_in, Encoder)
    assert inspect.signature(stand_in.forward) == inspect.signature(model.forward)
    assert stand_in.config is model.config
    stand_in.extra = 1
    assert model.extra == 1
    del stand_in.extra
    assert not hasattr(model, "extra")
    stand_in.inner = nn.Linear(4, 4, bias=False)
    assert model.inner.bias is None
    assert list(stand_in.state_dict()) == list(model.state_dict())
    assert {stand_in: 1}[stand_in] == 1
    assert stand_in == model


def test_other_methods_are_tuned_through_their_calls(model, marked):
    model.encode(X)
    assert len(marked.calls) == 1


# ------------------------------------------------------------------------------------------ hooks


def seen_by(model, marked, register):
    """Return what a hook saw of a call with it and of one after its removal, and how often an engine ran."""
    seen = []
    remover = register(model, lambda *call, **kwargs: seen.append(1))
    marked.calls.clear()
    x = X.clone().requires_grad_(True)
    with torch.enable_grad():
        model(x).sum().backward()
    during, engines = len(seen), len(marked.calls)
    remover.remove()
    model(X)
    return during, engines, len(seen), len(marked.calls)


GLOBAL = torch.nn.modules.module
HOOKS = {
    "forward": lambda m, hook: m.register_forward_hook(hook),
    "forward, with kwargs": lambda m, hook: m.register_forward_hook(hook, with_kwargs=True),
    "forward, always": lambda m, hook: m.register_forward_hook(hook, always_call=True),
    "forward, prepended": lambda m, hook: m.register_forward_hook(hook, prepend=True),
    "forward pre": lambda m, hook: m.register_forward_pre_hook(hook),
    "forward pre, with kwargs": lambda m, hook: m.register_forward_pre_hook(hook, with_kwargs=True),
    "full backward": lambda m, hook: m.register_full_backward_hook(hook),
    "full backward pre": lambda m, hook: m.register_full_backward_pre_hook(hook),
}
GLOBAL_HOOKS = {
    "forward": lambda m, hook: GLOBAL.register_module_forward_hook(hook),
    "forward pre": lambda m, hook: GLOBAL.register_module_forward_pre_hook(hook),
    "full backward": lambda m, hook: GLOBAL.register_module_full_backward_hook(hook),
    "full backward pre": lambda m, hook: GLOBAL.register_module_full_backward_pre_hook(hook),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("place", ["root", "child"])
def test_a_hook_from_after_tuning_runs_once_a_call_until_it_is_removed(model, marked, place, hook):
    during, engines, in_all, later = seen_by(
        model, marked, lambda m, seen: HOOKS[hook](m if place == "root" else m.inner, seen)
    )
    assert (during, engines, in_all, later) == (1, 0, 1, 1)


@pytest.mark.parametrize("hook", GLOBAL_HOOKS)
def test_a_global_hook_runs_for_every_module_until_it_is_removed(model, marked, hook):
    during, engines, in_all, later = seen_by(model, marked, GLOBAL_HOOKS[hook])
    assert (during, engines, in_all, later) == (2, 0, 2, 1)


@pytest.mark.parametrize("hook", [name for name in HOOKS if "backward" not in name])
@pytest.mark.parametrize("place", ["root", "child"])
def test_a_hook_from_before_tuning_runs_at_every_call(tune, marked, place, hook):
    model, seen = Encoder().eval(), []
    remover = HOOKS[hook](model if place == "root" else model.inner, lambda *call: seen.append(1))
    try:
        tune(model, marked, X)
    except ait_error():
        pass  # no engine can be had while it is there
    seen.clear()
    for _ in range(3):
        model(X)
    assert len(seen) == 3
    remover.remove()


def ait_error():
    from aitune.exceptions import AITuneError

    return AITuneError


def test_a_hook_changes_inputs_and_outputs_and_an_always_hook_sees_errors(model):
    with model.register_forward_pre_hook(lambda m, args: (args[0] * 2,)):
        assert torch.equal(model(X), model.inner(X * 2) + 1)
    with model.register_forward_hook(lambda m, args, out: out * 0):
        assert not model(X).any()
    seen = []
    with model.register_forward_hook(lambda *call: seen.append(1), always_call=True):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
    assert seen == [1]


def test_hooks_of_state_dicts_work(model):
    model.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update({prefix + "extra": X}))
    model._register_load_state_dict_pre_hook(lambda state, *rest: state.pop("extra"))
    state = model.state_dict()
    assert "extra" in state
    model.load_state_dict(state)
    assert torch.equal(model(X), model._call_impl(X))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hooks_below_are_not_skipped_by_an_engine_that_reads_the_live_weights_either(serve, compiled):
    """torch.compile leaves out guards on hooks, so a hook on a child would go unnoticed."""
    from aitune.torch.backend import TorchInductorJitBackend

    backend = FunctionBackend(lambda job: job.module.inner.forward, FunctionBackendConfig(live_weights=True))
    model, seen = Encoder().eval(), []
    handle = serve(model, TorchInductorJitBackend() if compiled else backend, X)
    model(X)
    assert sum(handle.stats.engine_calls.values()) == 1
    with model.inner.register_forward_hook(lambda *call: seen.append(1)):
        model(X)
    assert seen == [1]


# ------------------------------------------------------------------------------------------ modes, moves and casts


def test_training_casts_and_moves_are_followed(model, marked):
    assert model.train().training
    assert model.inner.training
    model.eval()
    assert model.half()(X.half()).dtype is torch.float16
    assert torch.equal(model.float()(X), model._call_impl(X))
    assert model.double()(X.double()).dtype is torch.float64
    assert model.to("meta")(X.to("meta").double()).is_meta


def test_a_cast_there_and_back_is_right(model):
    old = model(X)
    model.to(torch.bfloat16).float()
    assert torch.equal(model(X), model._call_impl(X))
    assert not torch.equal(model(X), old)


def test_autocast_grad_and_inference_modes_may_change_from_call_to_call(model, marked):
    def call(*contexts, x=X):
        with torch.no_grad():
            pass
        stack = [make() for make in contexts]
        for context in stack:
            context.__enter__()
        try:
            return model(x)
        finally:
            for context in reversed(stack):
                context.__exit__(None, None, None)

    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    for _ in range(3):
        assert call(autocast).dtype is torch.float32  # the buffer that is added is
        assert model.encode(X).dtype is torch.float32
        assert call(torch.no_grad).dtype is torch.float32
        assert call(torch.inference_mode).is_inference()
        assert not call(torch.no_grad).is_inference()
        with autocast():
            assert torch.equal(model(X), model._call_impl(X))
    with torch.inference_mode():
        frozen = X.clone()
    assert torch.equal(call(torch.no_grad, x=frozen), call(torch.no_grad))
    assert call(x=X.clone().requires_grad_(True)).requires_grad


# ------------------------------------------------------------------------------------------ copies

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "old pickle": lambda m: pickle.loads(pickle.dumps(m, protocol=2)),
    "cloudpickle": lambda m: cloudpickle.loads(cloudpickle.dumps(m)),
    "torch.save": lambda m: saved_and_loaded(m),
    "deepcopy of a list": lambda m: copy.deepcopy([m])[0],
    "deepcopy of a parent": lambda m: copy.deepcopy(nn.Sequential(m))[0],
    "replica": lambda m: m._replicate_for_data_parallel(),
    "copied __dict__": lambda m: copied_by_hand(m),
}


def saved_and_loaded(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def copied_by_hand(model):
    twin = type(model).__new__(type(model))
    twin.__dict__.update(model.__dict__)
    return twin


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("state", ["tuned", "deactivated", "recording"])
def test_a_copy_runs_itself_and_never_the_original_or_its_engines(model, marked, way, state):
    handle = ait.handle(model)
    if state == "deactivated":
        handle.deactivate()
    elif state == "recording":
        handle.enable_recording(force=True)
    twin = COPIES[way](model)
    assert type(twin) is Encoder
    twin.shift = torch.full((4,), 7.0)  # of the copy alone, unless they share the dict of buffers
    expected = twin._call_impl(X)
    for _ in range(3):
        assert torch.equal(twin(X), expected)
    assert marked.calls == []
    if state == "recording":
        assert handle.recorded is None


class Kept(Encoder):
    """Says itself what goes into its pickles, as the recurrent modules of torch do."""

    def __getstate__(self):
        return dict(self.__dict__)


@pytest.mark.parametrize("way", COPIES)
def test_a_module_that_pickles_itself_is_copied_and_pickled_without_its_engines(serve, marked, way):
    model = Kept().eval()
    serve(model, marked, X)
    assert len(marked.calls) == 0
    twin = COPIES[way](model)
    twin.shift = torch.full((4,), 7.0)
    assert torch.equal(twin(X), twin._call_impl(X))
    assert marked.calls == []
    assert b"aitune" not in pickle.dumps(model)


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_a_pickle_names_nothing_of_aitune(model, dump):
    names = dump(model)
    assert b"aitune" not in names.replace(b"aitune.testing", b"")


def test_weights_are_saved_and_loaded_as_before(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = Encoder().eval()
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.testing.assert_close(other(X), model(X))


def test_what_cannot_be_pickled_raises_what_eager_raises(serve, marked):
    plain = nn.Sequential(nn.Linear(4, 4))
    plain.bad = lambda: None
    with pytest.raises((AttributeError, pickle.PicklingError)) as eager:
        pickle.dumps(plain)
    plain = plain.eval()
    serve(plain, FunctionBackend(lambda job: job.forward), X)
    with pytest.raises(type(eager.value)) as tuned:
        pickle.dumps(plain)
    assert str(tuned.value) == str(eager.value)


# ------------------------------------------------------------------------------------------ other tools of torch


@pytest.mark.parametrize("place", ["itself", "in a parent", "as a stand-in in a parent"])
def test_torch_compile_of_it_is_right(model, place):
    whole = model if place == "itself" else nn.Sequential(ait.Module(model) if "stand-in" in place else model)
    compiled = torch.compile(whole, backend="eager", fullgraph="stand-in" not in place)
    torch.testing.assert_close(compiled(X), whole(X))


@pytest.mark.parametrize("place", ["itself", "in a parent", "as a stand-in in a parent"])
def test_torch_export_of_it_is_right(model, place):
    whole = model if place == "itself" else nn.Sequential(ait.Module(model) if "stand-in" in place else model)
    program = torch.export.export(whole, (X,))
    torch.testing.assert_close(program.module()(X), whole(X))
    assert not any("aitune" in str(node.target) for node in program.graph.nodes)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("place", ["itself", "in a parent", "as a stand-in in a parent"])
@pytest.mark.parametrize("tool", ["trace", "script"])
def test_torch_jit_of_it_is_right(model, place, tool):
    whole = model if place == "itself" else nn.Sequential(ait.Module(model) if "stand-in" in place else model)
    made = torch.jit.trace(whole, (X,)) if tool == "trace" else torch.jit.script(whole)
    torch.testing.assert_close(made(X), whole(X))
    assert made.code


def test_fx_tracing_of_it_is_right(model):
    for whole in (model, nn.Sequential(model)):
        traced = torch.fx.symbolic_trace(whole)
        torch.testing.assert_close(traced(X), whole(X))


def test_vmap_jacobian_and_hessian_of_it_are_the_originals(model):
    x = torch.ones(4)
    jacobian = torch.func.jacrev(model)(x)
    assert torch.equal(jacobian, model.inner.weight)
    assert torch.func.vmap(model)(X).shape == (2, 4)
    params = dict(model.named_parameters())
    gradient = torch.func.grad(lambda p: torch.func.functional_call(model, p, (X,)).sum())(params)
    assert gradient["inner.bias"].shape == (4,)


def test_compile_by_the_user_after_tuning_is_the_users_and_untune_leaves_it(model, marked):
    def mine(x):
        return "mine"

    model._compiled_call_impl = mine
    assert model(X) == "mine"
    ait.handle(model).untune()
    assert model(X) == "mine"
    del model._compiled_call_impl


# ------------------------------------------------------------------------------------------ places


def test_one_module_at_two_places_is_tuned_at_both(serve, marked):
    shared = Encoder().eval()
    handle = serve(shared, marked, X)
    parent = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    assert torch.equal(parent["a"](X), parent["b"](X))
    assert handle.stats.engine_calls == {"Marked()": 2}
    assert len(list(parent.parameters())) == 2


@dataclasses.dataclass
class Pipeline:
    model: nn.Module
    more: list


def test_in_a_list_a_dict_or_a_dataclass_it_is_found_and_tuned(serve, marked):
    first, second = Encoder().eval(), Encoder().eval()
    serve(first, marked, X)
    serve(second, marked, X)
    pipeline = Pipeline(first, [{"second": second}])
    twin = copy.deepcopy(pipeline)
    marked.calls.clear()
    pipeline.model(X)
    pipeline.more[0]["second"](X)
    assert len(marked.calls) == 2
    assert torch.equal(twin.model(X), first._call_impl(X))
    assert len(marked.calls) == 2
    assert ait.handle(first).name != ait.handle(second).name


def test_a_wrapped_module_wrapped_and_nested_again_is_right(serve, marked):
    inner = ait.Module(ait.Module(Encoder().eval(), "once"), "twice")
    outer = ait.Module(nn.Sequential(inner, nn.ReLU()).eval(), "outer")
    serve(outer.__wrapped__, marked, X)
    assert torch.equal(outer(X), torch.relu(inner.__wrapped__._call_impl(X)))
    outer.untune()
    inner.untune()
    assert torch.equal(outer(X), torch.relu(inner(X)))


# ------------------------------------------------------------------------------------------ threads and processes


def test_asyncio_tasks_and_threads_share_it(model, marked):
    async def serve():
        return await asyncio.gather(*(asyncio.to_thread(model, X * i) for i in range(8)))

    with torch.no_grad():
        answers = asyncio.run(serve())
    for i, answer in enumerate(answers):
        torch.testing.assert_close(answer, model._call_impl(X * i))


class Dataset(torch.utils.data.Dataset):
    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(X * index)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_run_it(model, context):
    loader = torch.utils.data.DataLoader(Dataset(model), num_workers=1, multiprocessing_context=context)
    for index, answer in enumerate(loader):
        torch.testing.assert_close(answer[0], model._call_impl(X * index))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "backend", ["marked", "onnxruntime", "openvino", "eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_a_forked_child_is_answered_by_the_original_and_ends(serve, marked, backend):
    """Engines have threads of their own, which a forked child lacks: it would wait for them for ever."""
    import aitune.torch.backend as backends

    made = {
        "marked": lambda: marked,
        "onnxruntime": backends.ONNXRuntimeBackend,
        "openvino": backends.OpenVINOBackend,
        "inductor": backends.TorchInductorJitBackend,
        "eager": backends.TorchEagerBackend,
    }[backend]()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).eval()
    x = torch.randn(32, 64)
    serve(model, made, x)
    with torch.no_grad():
        expected = model(x)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                answer = model(x)
            stats = ait.handle(model).stats
            right = torch.allclose(answer, expected, atol=1e-4) and stats.fallbacks.get("forked process") == 1
            ait.handle(model).untune()
            del model
            gc.collect()
            code = 0 if right else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(_wait(child)) == 0
    torch.testing.assert_close(model(x), expected)
    assert "forked process" not in ait.handle(model).stats.fallbacks


def _wait(child, seconds=60):
    import signal
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the forked child hangs")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_other_threads_calls_does_not_hang(model):
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            model(X)
            model(torch.ones(3, 4))  # counted as a miss, under a lock
            ait.handle(model)
            ait.Module(nn.ReLU())

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    torch.set_num_threads(1)
                    model(X)
                    ait.handle(model)
                    ait.Module(nn.ReLU())
                finally:
                    os._exit(0)
            assert os.waitstatus_to_exitcode(_wait(child)) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_data_parallel_and_distributed_in_one_process_are_right(model, tmp_path):
    torch.testing.assert_close(nn.DataParallel(model)(X), model(X))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        torch.testing.assert_close(parallel(X), model(X))
        parallel.train()
        parallel(X).sum().backward()
        assert model.inner.weight.grad is not None
        optimizer = torch.optim.SGD(parallel.parameters(), lr=1.0)
        optimizer.step()
        parallel.eval()
        torch.testing.assert_close(parallel(X), model._call_impl(X))
    finally:
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------------------------------------ lifetime


@pytest.mark.parametrize("way", ["let go", "after an exception", "untuned", "tuned twice", "stale", "recorded alone"])
def test_a_module_goes_with_its_engines_when_nobody_uses_it(way, caplog):
    caplog.set_level(logging.CRITICAL)
    engines = []

    def make(job):
        twin = copy.deepcopy(job.module)
        engines.append(weakref.ref(twin))
        return twin._call_impl

    model = Encoder().eval()
    strategy = ait.OneBackendStrategy(FunctionBackend(make)).enable_performance_validation(False)
    handle = ait.handle(ait.Module(model, "leaver", strategy))
    handle.enable_recording()
    model(X)
    if way != "recorded alone":
        handle.tune()
    if way == "after an exception":
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
    elif way == "untuned":
        handle.untune()
    elif way == "tuned twice":
        handle.tune()
    elif way == "stale":
        model.half()
        model(X.half())
    gone = weakref.ref(model)
    weights = weakref.ref(model.inner.weight)
    del model
    gc.collect()
    assert gone() is None
    assert weights() is None
    assert [engine for engine in engines if engine() is not None] == []


def test_untune_gives_back_the_module_byte_for_byte(serve, marked):
    model = Encoder().eval()
    before, keys, data = dict(model.__dict__), list(model.__dict__), pickle.dumps(model)
    handle = serve(model, marked, X)
    model(X)
    model(torch.ones(7, 4))
    handle.untune()
    assert model.__dict__ == before
    assert list(model.__dict__) == keys
    assert pickle.dumps(model) == data
    assert marked.open_engines == 0
