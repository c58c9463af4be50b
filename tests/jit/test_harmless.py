"""What programs do with modules works as before, enabled or not."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import signal
import threading
import traceback
import weakref

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.testing.modules import Branching
from aitune.torch.jit.patched_module import forest, history
from aitune.torch.jit.patcher import disable_jit_tuning, enable_jit_tuning, prepare_for_jit_tuning, session

SLOT = "_compiled_call_impl"


def call(module, rows=2):
    with torch.no_grad():
        return module(torch.ones(rows, 4))


class Odd(RuntimeError):
    pass


class Raises(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, fail):
        x = self.net(x)
        if fail:
            raise Odd("mine")
        return x


def test_an_exception_keeps_its_type_its_place_and_the_next_call_works(jit, net, seen):
    module = Raises(net).eval()
    for _ in range(2):
        with pytest.raises(Odd, match="mine") as caught, torch.no_grad():
            module(torch.ones(1, 4), True)
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "forward"
        assert caught.value.__context__ is None
    with torch.no_grad():
        module(torch.ones(1, 4), False)
    assert seen()[0] == ("Raises", 0, "tuned")
    with pytest.raises(Odd, match="mine"), torch.no_grad():
        module(torch.ones(1, 4), True)


def test_a_call_that_does_not_fit_raises_what_it_always_did(jit, net):
    with pytest.raises(TypeError) as bare:
        copy.deepcopy(net).forward()
    with pytest.raises(TypeError) as caught:
        net()
    assert str(caught.value) == str(bare.value)


def test_training_is_as_before(settings, net):
    def train(model):
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for step in range(10):
            loss = model.train()(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % 3 == 0:
                with torch.no_grad():
                    losses.append(model.eval()(torch.ones(2, 4)).sum().item())
        return losses

    plain = train(copy.deepcopy(net))
    enable_jit_tuning()
    assert train(net) == pytest.approx(plain, abs=1e-6)


def test_a_module_in_training_is_not_tuned_between_its_steps_and_is_when_they_are_over(jit, net, seen):
    for _ in range(4):
        net.train()(torch.ones(2, 4)).sum().backward()
        net.eval()
        call(net)
    assert seen()[0] == ("Net", 0, "init")
    for _ in range(9):
        call(net)
    assert seen()[0] == ("Net", 0, "tuned")


def test_outputs_have_gradients_also_after_a_tune(jit, net):
    call(net)
    assert ait.handle(net).serves
    output = net(torch.ones(2, 4))
    output.sum().backward()
    assert net.head.weight.grad is not None


def test_calls_with_gradients_are_not_recorded_and_the_history_says_how_to(jit, net, seen, steps):
    for _ in range(3):
        net(torch.ones(2, 4))
    assert seen() == [("Net", 0, "init")]
    (step,) = [step for step in steps() if step.startswith("Not recorded")]
    assert "torch.no_grad()" in step


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_both_modes_of_inference_are_tuned(jit, net, mode):
    with mode():
        expected = net(torch.ones(2, 4))
        assert torch.equal(net(torch.ones(2, 4)), expected)
    assert ait.handle(net).stats.engine_calls
    with torch.no_grad():
        assert torch.equal(net(torch.ones(2, 4)), expected)


def test_a_model_under_torch_compile_is_one_graph_as_before(settings, net):
    enable_jit_tuning()
    frames = []

    def backend(graph, _):
        frames.append(graph)
        return graph.forward

    compiled = torch.compile(net, backend=backend, fullgraph=True)
    assert torch.equal(call(compiled), call(copy.deepcopy(net)._call_impl))
    assert len(frames) == 1


def test_a_module_compiled_in_place_stays_compiled(jit, net, seen):
    net.compile(backend="eager")
    entry = net.__dict__[SLOT]
    call(net)
    assert net.__dict__[SLOT] is entry
    assert all(name != "Net" for name, _, _ in seen())


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_script_trace_export_and_symbolic_trace_work(jit, net):
    x = torch.ones(2, 4)
    expected = call(copy.deepcopy(net)._call_impl)
    for make in (
        lambda: torch.jit.trace(net, x, check_trace=False),
        lambda: torch.fx.symbolic_trace(net),
        lambda: torch.export.export(net, (x,)).module(),
        lambda: torch.export.export(net, (x,), strict=True).module(),
        lambda: torch.jit.script(net),
    ):
        for _ in range(2):  # before the tune and after it
            assert torch.equal(call(make()), expected)
            call(net)


def test_transforms_and_functional_calls_are_the_originals(jit, net):
    state = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    for _ in range(2):
        with torch.no_grad():
            assert not torch.func.functional_call(net, state, (torch.ones(2, 4),)).any()
            torch.func.vmap(net)(torch.ones(3, 2, 4))
            call(net)
    assert ait.handle(net).serves


def test_what_is_pickled_and_copied_names_nothing_of_aitune(jit, net):
    call(net)
    assert b"aitune.torch" not in pickle.dumps(net.blocks[0].linear)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    assert b"aitune" not in buffer.getvalue()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.head.weight.zero_()
        assert not torch.equal(call(twin), call(net))


def test_types_names_and_attributes_are_unchanged(jit, net):
    before = type(net), repr(net), list(net.state_dict()), sorted(vars(net))
    call(net)
    assert (type(net), repr(net), list(net.state_dict())) == before[:3]
    assert sorted(set(vars(net)) - {SLOT}) == before[3]


def test_nothing_is_kept_alive(jit, net):
    net = type(net)().eval()  # pytest holds the other
    call(net)
    blocks = net.blocks
    call(blocks)
    untuned = type(net)().eval()
    untuned(torch.ones(1, 4))
    references = [weakref.ref(part) for one in (net, untuned) for part in one.modules()]
    del net, blocks, untuned
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert ait.PatchedModule.hierarchy() == ()


def test_an_undecided_module_goes_without_the_garbage_collector(jit, net):
    jit.min_samples = 100
    net = type(net)().eval()  # pytest holds the other
    call(net)
    reference = weakref.ref(net)
    gc.disable()
    try:
        del net
        assert reference() is None
    finally:
        gc.enable()


def test_unusual_modules_work(jit):
    class Slotted(torch.nn.Module):
        __slots__ = ("extra",)

        def __init__(self):
            self.early = 3  # before the constructor
            super().__init__()
            self.extra = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.extra(x) * self.early

    class OwnCall(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def __call__(self, x, *, self_=None):
            return super().__call__(x) + 1

        def forward(self, x):
            return self.linear(x)

    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU())
    for module in (Slotted(), OwnCall(), lazy):
        module.eval()
        first = call(module)
        for _ in range(3):
            assert torch.equal(call(module), first)


def test_arguments_may_have_any_name(jit):
    class Names(torch.nn.Module):
        def forward(self, module, args=None, here=None, node=None, **kwargs):
            return module * 2 + kwargs.get("recording", 0)

    names = Names().eval()
    with torch.no_grad():
        for _ in range(3):
            assert names(module=torch.ones(1), args=1, here=2, node=3, recording=4).item() == 6


def test_threads_may_call_while_one_of_them_tunes(jit, net):
    expected = call(copy.deepcopy(net)._call_impl)
    wrong, errors = [], []

    def work():
        try:
            for _ in range(20):
                if not torch.allclose(call(net), expected):
                    wrong.append(1)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, errors) == ([], [])
    assert ait.handle(net).serves


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_runs_the_originals(jit, net):
    call(net)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of the test run may go on here
        state = [torch.nn.Module._compiled_call_impl is None, SLOT not in net.__dict__]
        os.write(writer, b"good" if all(state) else b"bad!")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4) == b"good"
    assert ait.handle(net).serves


def test_a_forked_child_may_turn_it_on_again_whatever_other_threads_of_the_parent_held(jit, net, seen):
    call(net)
    locks = (session.interception._lock, forest._lock, history._lock, session._placing)
    held, over = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of the test run may go on here
        signal.alarm(60)
        state = [not ait.PatchedModule.hierarchy()]
        enable_jit_tuning()
        fresh = copy.deepcopy(net)
        call(fresh)
        state += [ait.handle(fresh).serves, seen()[0] == ("Net", 0, "tuned")]
        os.write(writer, b"good" if all(state) else repr(state).encode())
        os._exit(0)
    over.set()
    holder.join()
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"good"


def test_modules_that_are_seen_one_by_one_run_the_originals_in_a_forked_child(settings, net):
    with prepare_for_jit_tuning():
        module = Branching().eval()
    child = os.fork()
    if child == 0:  # nothing of the test run may go on here
        os._exit(0 if SLOT not in module.__dict__ else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert SLOT in module.__dict__


def test_data_parallel_modules_are_looked_through(jit, net, seen, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(net)
        loss = parallel.train()(torch.ones(2, 4)).sum()
        loss.backward()
        assert net.head.weight.grad is not None
        call(parallel.eval())
    finally:
        torch.distributed.destroy_process_group()
    assert [name for name, level, _ in seen() if level == 0] == ["Net"]


def test_hooks_run_and_keep_a_module_from_being_tuned(jit, net, seen):
    calls = []
    net.head.register_forward_hook(lambda *_: calls.append("hook"))
    call(net)
    call(net)
    assert calls == ["hook", "hook"]
    assert [state for name, level, state in seen() if level <= 1] == ["eager", "tuned", "tuned", "eager"]


def test_a_hook_that_comes_later_runs(jit, net):
    call(net)
    calls = []
    net.head.register_forward_hook(lambda *_: calls.append("hook"))
    call(net)
    assert calls == ["hook"]


def test_what_goes_wrong_in_aitune_is_noted_and_the_program_goes_on(jit, net, steps, monkeypatch):
    jit.raise_failures = False
    expected = call(copy.deepcopy(net)._call_impl)
    monkeypatch.setattr(ait.jit_config.strategy, "choose", None)
    for _ in range(3):
        assert torch.equal(call(net), expected)
    assert any("NoneType" in step for step in steps())


def test_containers_that_cannot_be_looked_into_are_passed_on(jit, net):
    class Strange(dict):
        def items(self):
            raise Odd("not yours to read")

        def __iter__(self):
            raise Odd("not yours to read")

    class Takes(torch.nn.Module):
        def forward(self, x, strange):
            return x + len(strange)

    jit.raise_failures = False
    takes = Takes().eval()
    with torch.no_grad():
        for _ in range(3):
            assert takes(torch.zeros(1), Strange(a=1)).item() == 1


def test_a_module_whose_exports_fail_answers_as_before(jit, always):
    jit.strategy = None
    jit.strategy = always(
        FunctionBackend(lambda job: (_ for _ in ()).throw(MemoryError("no")), FunctionBackendConfig(label="greedy"))
    )
    branching = Branching().eval()
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = branching.forward(x)
        for _ in range(3):
            assert torch.equal(branching(x), expected)


def test_a_tune_in_the_middle_of_a_tune_does_not_happen(jit, net):
    model = ait.Module(type(net)().eval(), "mine", strategy=jit.strategy)
    ait.tune(lambda x: model(net(torch.ones(len(x), 4)).new_ones(len(x), 4)), list(torch.ones(2, 4)), progress=False)
    with pytest.raises(ValueError, match="not wrapped"):
        ait.handle(net)
    disable_jit_tuning()


def test_an_interrupt_during_a_tune_is_the_programs_and_the_module_stays_as_it_is(jit, always, net, seen):
    builds = []

    def interrupted(job):
        builds.append(job)
        raise KeyboardInterrupt

    jit.strategy = always(FunctionBackend(interrupted, FunctionBackendConfig(label="interrupted")))
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            call(net)
        assert seen()[0] == ("Net", 0, "eager")
        assert ait.PatchedModule.hierarchy()[0].reason == "its tune was interrupted"
        assert all(state != "recording" for _, _, state in seen())
        torch.testing.assert_close(net(torch.ones(2, 4)), net.forward(torch.ones(2, 4)))
    assert len(builds) == 1


def test_a_module_that_aitune_fails_at_is_left_alone_and_that_is_said_once(jit, steps):
    class NoHash(torch.nn.Linear):
        __hash__ = None

    jit.raise_failures = False
    module = NoHash(4, 4).eval()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(module(torch.ones(2, 4)), module.forward(torch.ones(2, 4)))
    assert sum("Stepped aside" in step for step in steps()) == 1
    assert module.__dict__["_compiled_call_impl"] is None


def test_calls_between_steps_of_training_are_not_recorded(jit, net):
    for _ in range(3):
        net.train()(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            net.eval()(torch.ones(2, 4))
    assert forest.find(net).recording is None
    assert forest.find(net.head) is None
