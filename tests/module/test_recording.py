"""Recording: the original answers, graphs and samples stay behind."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from aitune.torch.config import config
from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.graph.signature import CallSignature
from aitune.torch.module.recording import MAX_GRAPHS_PER_STRUCTURE, Recording, batch_of
from aitune.torch.module.slot import Slot


class Scaled(torch.nn.Module):
    def forward(self, x, scale=1.0, *, options=None):
        if options is not None:
            x = x + options["shift"]
        return {"y": x * scale}


@pytest.fixture
def module():
    return Scaled()


@pytest.fixture
def recording(module):
    slot = Slot(module, None)
    recording = Recording(CallSignature.of(module.forward))
    slot.install(functools.partial(recording.call, slot))
    return recording


def graphs(recording):
    return [seen.graph(f"graph{i}", recording.signature) for i, seen in enumerate(recording.observations)]


def test_positional_keyword_and_default_forms_are_one_graph(module, recording):
    x = torch.ones(2, 3)
    for result in (module(x), module(x=x), module(x, 1.0), module(x, scale=1.0, options=None)):
        assert torch.equal(result["y"], x)
    assert len(graphs(recording)) == 1
    assert recording.calls == 4


def test_two_batch_sizes_make_a_batch_dimension(module, recording):
    for batch, length in ((1, 4), (2, 6), (2, 4)):
        with batch_of(batch):
            module(torch.ones(batch, length))
    (graph,) = graphs(recording)
    assert graph.inputs.tensors[0].shape == (BatchDim("batch0", 1, 2), DynamicDim("dim0", 4, 6))
    assert graph.outputs.tensors[0].shape == graph.inputs.tensors[0].shape


def test_structure_dtype_rank_and_scalars_make_other_graphs(module, recording):
    x = torch.ones(2, 3)
    module(x)
    module(x.double())
    module(torch.ones(3))
    module(x, 2.0)
    module(x, options={"shift": x})
    assert len(graphs(recording)) == 5


def test_a_scalar_that_keeps_changing_does_not_multiply_graphs(module, recording):
    x = torch.ones(2, 3)
    for step in range(50):
        assert torch.equal(module(x, float(step))["y"], x * step)
    *exact, last = graphs(recording)
    assert len(exact) == MAX_GRAPHS_PER_STRUCTURE - 1
    assert [str(leaf) for leaf in last.inputs.varying] == ["scale: any float"]
    assert not any(graph.inputs.varying for graph in exact)
    assert recording.not_recorded == {}


def test_without_strict_mode_scalars_do_not_tell_graphs_apart(module, recording, monkeypatch):
    monkeypatch.setattr(config, "strict_mode", False)
    x = torch.ones(2, 3)
    module(x, 1.0)
    module(x, 2.0)
    assert len(graphs(recording)) == 1


def test_the_number_of_samples_is_bounded_and_spread_over_the_sizes(module, recording):
    for length in (*range(1, 40), 3, 3, 3):
        module(torch.ones(1, length))
    (seen,) = recording.observations
    lengths = [sample.args[0].shape[1] for sample in seen.samples]
    assert len(lengths) == config.max_num_samples_stored == 4
    assert lengths[0] == 1
    assert lengths[-1] == 39
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(lengths))


def test_samples_are_copies_from_before_the_call(recording, module):
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return x.add_(1)

    inplace = InPlace()
    slot, own = Slot(inplace, None), Recording(CallSignature.of(inplace.forward))
    slot.install(functools.partial(own.call, slot))
    x = torch.zeros(2)
    inplace(x)
    assert x.tolist() == [1, 1]
    assert own.observations[0].samples[0].args[0].tolist() == [0, 0]


def test_an_exception_passes_and_is_not_recorded(module, recording):
    with pytest.raises(TypeError, match="forward"):
        module()
    with pytest.raises(RuntimeError):
        module(torch.ones(2), options={"shift": torch.ones(3)})
    assert recording.calls == 0
    assert recording.observations == ()


def test_calls_under_autocast_or_torch_func_are_answered_and_not_recorded(module, recording):
    x = torch.ones(2, 3)
    with torch.autocast("cpu"):
        module(x)
    torch.func.vmap(lambda row: module(row)["y"])(x)
    assert recording.calls == 0
    assert set(recording.not_recorded) == {"autocast", "torch.func transform"}


def test_empty_tensors_widen_nothing_and_are_no_samples(module, recording):
    module(torch.ones(0, 3))
    assert recording.observations[0].samples == ()


def test_an_output_that_changes_its_structure_is_noticed():
    class Fickle(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else (x, x)

    fickle = Fickle()
    slot, own = Slot(fickle, None), Recording(CallSignature.of(fickle.forward))
    slot.install(functools.partial(own.call, slot))
    fickle(torch.ones(2))
    fickle(-torch.ones(2))
    assert "structured differently" in own.observations[0].unstable


@pytest.mark.parametrize("decorator", [torch.no_grad(), torch.inference_mode(), torch.compiler.disable])
def test_decorators_of_torch_leave_a_default_what_it_is(decorator):
    class Decorated(torch.nn.Module):
        @decorator
        def forward(self, x, scale=1.0):
            return x * scale

    module = Decorated()
    own = Recording(CallSignature.of(module.forward))
    for args in ((torch.ones(2),), (torch.ones(2), 1.0)):
        own.call(Slot(module, None), *args)
    assert len(own.observations) == 1


def test_behind_another_decorator_left_out_and_passed_are_two_things(install, engine_of):
    class Decorated(torch.nn.Module):
        def plain(self, x, scale=None):
            return x * (1 if scale is None else scale)

        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            kwargs.setdefault("scale", 2)
            return self.plain(*args, **kwargs)

    module, x = Decorated().eval(), torch.ones(2)
    own = Recording(CallSignature.of(module.forward))
    own.call(Slot(module, None), x)
    graph = own.observations[0].graph("graph0", own.signature)
    args, kwargs = graph.call(graph.input_tensors((x,), {}))
    assert torch.equal(module.forward(*args, **kwargs), x * 2)
    dispatcher = install(module, (graph, engine_of(lambda x: "engine")))
    assert module(x) == "engine"
    assert torch.equal(module(x, scale=None), x)
    assert dispatcher.stats.fallbacks == {"value": 1}


def test_made_up_calls_are_written_as_the_first_recorded_one_was():
    class Decorated(torch.nn.Module):
        def plain(self, x, mask=None, use_cache=None):
            return x if mask is None else x * mask

        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            kwargs.setdefault("use_cache", False)  # as libraries do: a positional use_cache is one too many
            return self.plain(*args, **kwargs)

    module = Decorated()
    slot, own = Slot(module, None), Recording(CallSignature.of(module.forward))
    slot.install(functools.partial(own.call, slot))
    with batch_of(1):
        module(torch.ones(1, 2), mask=torch.ones(1, 2))
    with batch_of(2):
        module(torch.ones(2, 2), mask=torch.ones(2, 2))
    (seen,) = own.observations
    graph = seen.graph("graph0", own.signature)
    resized = graph.resized(seen.samples[0], {"batch0": 2})
    assert (len(resized.args), list(resized.kwargs)) == (1, ["mask"])
    assert module(*resized.args, **resized.kwargs).shape == (2, 2)
