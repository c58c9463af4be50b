"""The dispatcher: an engine answers what was validated, the original everything else."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aitune.torch.config import config


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x, scale=1.0, *, mask=None):
        y = self.inner(x) * scale
        return y if mask is None else y * mask


X = torch.ones(2, 3)


@pytest.fixture
def model():
    return Model().eval()


@pytest.fixture
def tuned(model, recorded, install, engine_of):
    """A model whose engine answers the string "engine" for batches of 1 to 4."""
    calls = [(batch, (torch.ones(batch, 3),), {}) for batch in (1, 4)]
    (graph,) = recorded(model, calls)
    engine = engine_of(lambda *args, **kwargs: "engine")
    return model, install(model, (graph, engine)), engine


def test_every_form_of_a_validated_call_reaches_the_engine(tuned):
    model, dispatcher, _ = tuned
    forms = [((X,), {}), ((), {"x": X}), ((X, 1.0), {}), ((X,), {"scale": 1.0, "mask": None})]
    assert [model(*args, **kwargs) for args, kwargs in forms] == ["engine"] * 4
    assert dispatcher.stats.engine_calls == {"Fake0()": 4}
    assert dispatcher.stats.fallbacks == {}
    assert dispatcher.stats.calls == 4


OUTSIDE = {
    "a batch above the range": ((torch.ones(5, 3),), {}, "range"),
    "an empty batch": ((torch.ones(0, 3),), {}, "range"),
    "another dtype": ((torch.ones(2, 3, dtype=torch.float64),), {}, "dtype"),
    "another rank": ((torch.ones(3),), {}, "rank"),
    "another scalar": ((X, 2.0), {}, "value"),
    "a scalar of another type": ((X, 1), {}, "value"),
    "another structure": ((X,), {"mask": X}, "value"),
    "a nested argument": (([X],), {}, "structure"),
    "a sparse tensor": ((X.to_sparse(),), {}, "type"),
    "a tensor on meta": ((torch.ones(2, 3, device="meta"),), {}, "device"),
    "an input that requires grad": ((torch.ones(2, 3, requires_grad=True),), {}, "requires grad"),
    "a tensor subclass": ((torch.ones(2, 3).as_subclass(type("Sub", (torch.Tensor,), {})),), {}, "type"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_what_was_validated_the_original_answers(tuned, name):
    model, dispatcher, engine = tuned
    args, kwargs, reason = OUTSIDE[name]

    def outcome(call):
        try:
            result = call(*args, **kwargs)
        except Exception as error:
            return type(error)
        return (type(result), tuple(result.shape))

    assert outcome(model) == outcome(model._call_impl)
    assert engine.calls == 0
    assert dispatcher.stats.fallbacks == {reason: 1}


def test_a_call_that_does_not_fit_raises_what_eager_raises(tuned):
    model, _, _ = tuned
    with pytest.raises(TypeError) as tuned_error:
        model(X, unknown=1)
    with pytest.raises(TypeError) as eager_error:
        model._call_impl(X, unknown=1)
    assert str(tuned_error.value) == str(eager_error.value)


def test_training_mode_goes_to_the_original_and_eval_back_to_the_engine(tuned):
    model, dispatcher, _ = tuned
    assert torch.is_tensor(model.train()(X))
    assert model.eval()(X) == "engine"
    assert dispatcher.stats.fallbacks == {"training flag": 1}


def test_autocast_and_functorch_and_modes_go_to_the_original(tuned):
    model, dispatcher, _ = tuned
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(X).dtype is torch.bfloat16
    assert torch.func.vmap(model)(X[:, None]).shape == (2, 1, 3)
    with FlopCounterMode(display=False) as counter:
        model(X)
    assert counter.get_total_flops() > 0
    assert dispatcher.stats.engine_calls == {}


def test_grad_policy_is_honoured_the_moment_it_is_set(tuned, monkeypatch):
    model, dispatcher, _ = tuned
    assert model(X) == "engine"
    monkeypatch.setattr(config, "grad_policy", "eager")
    assert model(X).requires_grad
    with torch.no_grad():
        assert model(X) == "engine"
    assert dispatcher.stats.fallbacks == {"gradients enabled": 1}


@pytest.mark.parametrize("where", ["root", "child", "global"])
def test_hooks_are_run_by_the_original_while_they_exist(tuned, where):
    model, dispatcher, _ = tuned
    seen = []

    def hook(*call):
        seen.append(1)

    if where == "global":
        remover = torch.nn.modules.module.register_module_forward_hook(hook)
    else:
        remover = (model if where == "root" else model.inner).register_forward_hook(hook)
    for _ in range(3):
        assert torch.is_tensor(model(X))
    remover.remove()
    assert len(seen) == (6 if where == "global" else 3)
    assert model(X) == "engine"
    assert dispatcher.stats.fallbacks == {"hooks": 3}


def test_a_hook_elsewhere_costs_nothing_but_one_look(tuned):
    model, dispatcher, _ = tuned
    other = torch.nn.Linear(1, 1)
    for _ in range(3):
        other.register_forward_hook(lambda *call: None)
        assert model(X) == "engine"
    assert dispatcher.stats.fallbacks == {}


CHANGES = {
    "in-place edit": lambda m: _add(m),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "assign": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "another parameter": lambda m: setattr(m.inner, "weight", torch.nn.Parameter(torch.zeros(3, 3))),
    "cast and back": lambda m: m.half().float(),
}


def _add(model):
    with torch.no_grad():
        model.inner.weight.add_(1)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights_send_every_later_call_to_the_original(tuned, caplog, name):
    model, dispatcher, _ = tuned
    assert model(X) == "engine"
    CHANGES[name](model)
    with caplog.at_level(logging.INFO, logger="aitune"):
        for _ in range(3):
            assert torch.equal(model(X), model._call_impl(X))
    assert dispatcher.stats.fallbacks == {"weights changed": 3}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "retune()" in caplog.text


def test_an_engine_that_reads_the_live_weights_keeps_answering(model, recorded, install, engine_of):
    (graph,) = recorded(model, [(2, (X,), {})])
    install(model, (graph, engine_of(lambda x: "engine", live_weights=True)))
    _add(model)
    assert model(X) == "engine"


def test_an_engine_that_raises_is_retired_and_the_call_answered(tuned, caplog):
    model, dispatcher, engine = tuned

    def fail(x):
        raise RuntimeError("broken driver")

    engine.function = fail
    assert torch.equal(model(X), model._call_impl(X))
    assert torch.equal(model(X), model._call_impl(X))
    assert engine.calls == 1
    assert dispatcher.stats.fallbacks == {"engine failed": 2}
    assert "broken driver" in caplog.text


def test_where_the_original_raises_too_the_engine_stays_and_the_call_is_counted(recorded, install, engine_of):
    class Picky(torch.nn.Module):
        def forward(self, x):
            if x.sum() < 0:
                raise KeyError("too small")
            return x

    def fail_too(x):
        if x.sum() < 0:
            raise RuntimeError("engine")
        return "engine"

    model = Picky().eval()
    (graph,) = recorded(model, [(2, (X,), {})])
    dispatcher = install(model, (graph, engine_of(fail_too)))
    with pytest.raises(KeyError, match="too small") as error:
        model(-X)
    assert error.value.__context__ is None
    assert dispatcher.stats.fallbacks == {"original raised": 1}
    assert model(X) == "engine"
    assert dispatcher.stats.calls == 2


def test_errors_of_an_engine_that_is_the_module_are_the_users(model, recorded, install, engine_of):
    (graph,) = recorded(model, [(2, (X,), {})])
    engine = engine_of(lambda x: (_ for _ in ()).throw(KeyError("mine")), own_errors=True, live_weights=True)
    dispatcher = install(model, (graph, engine))
    with pytest.raises(KeyError, match="mine"):
        model(X)
    assert dispatcher.stats.fallbacks == {}


def test_an_engine_that_is_not_reentrant_runs_one_call_at_a_time(model, recorded, install, engine_of):
    (graph,) = recorded(model, [(2, (X,), {})])
    inside, most = [], []
    gate = threading.Barrier(4)

    def run(x):
        inside.append(1)
        most.append(len(inside))
        for _ in range(1000):
            pass
        inside.pop()
        return "engine"

    dispatcher = install(model, (graph, engine_of(run, reentrant=False)))

    def work():
        gate.wait()
        for _ in range(200):
            model(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert dispatcher.stats.engine_calls == {"Fake0()": 800}


def test_a_forward_set_on_the_instance_is_respected(tuned):
    model, _, _ = tuned
    model.forward = lambda x: "mine"
    assert model(X) == "mine"
    del model.forward
    assert model(X) == "engine"
    assert tuned[1].stats.fallbacks == {"forward replaced": 1}


def test_an_instance_forward_from_before_tuning_keeps_its_engine(model, recorded, install, engine_of):
    model.forward = lambda x: x * 2
    (graph,) = recorded(model, [(2, (X,), {})])
    install(model, (graph, engine_of(lambda x: "engine")))
    assert model(X) == "engine"


def test_graphs_are_told_apart(model, recorded, install, engine_of):
    graphs = recorded(model, [(2, (X,), {}), (2, (X, 2.0), {}), (2, (X,), {"mask": X})])
    install(model, *((graph, engine_of(lambda *a, _i=i, **k: _i)) for i, graph in enumerate(graphs)))
    assert [model(X), model(X, 2.0), model(X, mask=X), model(scale=2.0, x=X)] == [0, 1, 2, 1]


@dataclass
class Options:
    gain: torch.Tensor
    kind: str


class Nested(torch.nn.Module):
    def forward(self, batch, options, *rest, **extra):
        return batch["ids"] * options.gain + sum(rest) + sum(extra.values())


def test_nested_arguments_are_routed(recorded, install, engine_of):
    nested = Nested().eval()
    ids, gain = torch.ones(2, 3), torch.ones(3)
    calls = [(2, ({"ids": ids}, Options(gain, "a"), ids), {"more": ids})]
    (graph,) = recorded(nested, calls)
    install(nested, (graph, engine_of(lambda *a, **k: "engine")))
    assert nested({"ids": ids}, Options(gain, "a"), ids, more=ids) == "engine"
    others = [
        ({"ids": ids}, Options(gain, "b"), ids),
        ({"ids": ids, "x": ids}, Options(gain, "a"), ids),
        ({"ids": ids}, Options(gain, "a"), ids, ids),
    ]
    for args in others:
        assert torch.is_tensor(nested(*args, more=ids))
    assert torch.is_tensor(nested({"ids": ids}, Options(gain, "a"), ids, other=ids))


def test_axes_that_were_always_equal_must_be_equal(recorded, install, engine_of):
    class Pair(torch.nn.Module):
        def forward(self, a, b):
            return a.sum() + b.sum()

    pair = Pair().eval()
    (graph,) = recorded(pair, [(n, (torch.ones(n), torch.ones(n)), {}) for n in (1, 4)])
    dispatcher = install(pair, (graph, engine_of(lambda a, b: "engine")))
    assert pair(torch.ones(3), torch.ones(3)) == "engine"
    assert torch.is_tensor(pair(torch.ones(3), torch.ones(2)))
    assert dispatcher.stats.fallbacks == {"range": 1}


def test_a_module_and_its_engines_go_when_the_user_lets_go(recorded, install, engine_of):
    model = Model().eval()
    (graph,) = recorded(model, [(2, (X,), {})])
    engine = engine_of(lambda x: "engine")
    from aitune.torch.module.dispatch import Dispatcher
    from aitune.torch.module.served import Served
    from aitune.torch.module.slot import Slot

    slot = Slot(model, None)
    slot.install(Dispatcher("model", slot, [Served(graph, engine, "Fake()")]).call)
    gone = weakref.ref(model), weakref.ref(engine)
    del model, engine, slot
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_out_of_range_is_logged_once_with_what_would_cover_it(tuned, caplog):
    model, _, _ = tuned
    with caplog.at_level(logging.INFO, logger="aitune"):
        for _ in range(3):
            model(torch.ones(9, 3))
    assert len(caplog.records) == 1
    assert "batch_sizes=" in caplog.text


DRIFTS = {
    "another child": lambda m: setattr(m, "inner", torch.nn.Linear(3, 3)),
    "one more child": lambda m: m.add_module("more", torch.nn.ReLU()),
    "a flag below": lambda m: m.inner.train(),
    "a write through .data": lambda m: m.inner.weight.data.mul_(2),
    "a write through numpy": lambda m: m.inner.weight.detach().numpy().fill(3),
    "an attribute below": lambda m: setattr(m.inner, "scale", 3),
    "an attribute": lambda m: setattr(m, "gain", 7.0),
    "a forward below": lambda m: setattr(m.inner, "forward", lambda x: x * 0),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_what_no_version_tells_is_noticed_within_50_calls(recorded, install, engine_of, name):
    model = Model().eval()
    model.gain = 1.0
    model.inner.scale = 1
    (graph,) = recorded(model, [(2, (X,), {})])
    dispatcher = install(model, (graph, engine_of(lambda x: "engine")))
    assert [model(X) for _ in range(60)] == ["engine"] * 60
    DRIFTS[name](model)
    answers = [model(X) for _ in range(50)]
    assert torch.is_tensor(answers[-1])
    assert torch.equal(answers[-1], model._call_impl(X))
    assert list(dispatcher.stats.fallbacks) == ["weights changed"]


def test_weights_that_are_swapped_for_one_call_send_that_call_to_the_original_and_no_other(tuned):
    model, dispatcher, _ = tuned
    doubled = {name: value * 2 for name, value in model.named_parameters()}
    assert torch.is_tensor(torch.func.functional_call(model, doubled, (X,)))
    assert [model(X) for _ in range(100)] == ["engine"] * 100
    assert dispatcher.stats.fallbacks == {"weights changed": 1}


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_differentiation_goes_to_the_original(tuned):
    model, dispatcher, _ = tuned
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        assert torch.autograd.forward_ad.unpack_dual(model(dual)).tangent is not None
    assert model(X) == "engine"
    assert dispatcher.stats.fallbacks == {"forward-mode differentiation": 1}


def test_tensors_that_are_plain_attributes_are_watched(recorded, install, engine_of):
    model = Model().eval()
    model.table = torch.ones(3)
    (graph,) = recorded(model, [(2, (X,), {})])
    install(model, (graph, engine_of(lambda x: "engine")))
    assert model(X) == "engine"
    model.table.mul_(2)
    assert torch.is_tensor(model(X))


def test_an_engine_that_serves_a_part_of_the_range_gets_that_part(model, recorded, install, engine_of):
    (graph,) = recorded(model, [(batch, (torch.ones(batch, 3),), {}) for batch in (1, 6)])
    engine = engine_of(lambda *args, **kwargs: "engine")
    engine.ranges = {"batch0": (2, 4)}
    dispatcher = install(model, (graph, engine))
    answers = [isinstance(model(torch.ones(size, 3)), str) for size in range(1, 7)]
    assert answers == [False, True, True, True, False, False]
    assert sum(dispatcher.stats.fallbacks.values()) == 3
