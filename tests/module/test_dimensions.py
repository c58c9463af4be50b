"""Sizes of recorded calls become ranges; what varied together is routed together; declarations hold or say why not."""

from __future__ import annotations

import logging

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing import FunctionBackend
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.module.recording import batch_of


class Total(torch.nn.Module):
    def forward(self, x, y=None, z=None):
        return x * 2 if y is None else (x * 2).sum() + y * 3 + (0 if z is None else z.sum())


def ones(*shape):
    return torch.ones(*shape)


@pytest.fixture
def routed(recorded, install, engine_of):
    """Record calls ``(batch, *arguments)``; return the graph, and a function that tells whether an engine answers."""

    def record(*calls):
        module = Total().eval()
        (graph,) = recorded(module, [(batch, args, {}) for batch, *args in calls])
        install(module, (graph, engine_of(lambda *args: "engine")))

        def answered(*args):
            answer = module(*args)
            return isinstance(answer, str)

        return graph, answered

    return record


def test_a_fixed_multiple_of_the_batch_is_routed_with_it(routed):
    graph, answered = routed(*((b, ones(2 * b, 3), ones(b)) for b in (1, 2, 4)))
    assert graph.batch_dim.name == "batch1"
    assert answered(ones(6, 3), ones(3))
    assert not answered(ones(6, 3), ones(2))
    assert not answered(ones(5, 3), ones(1))
    assert not answered(ones(8, 3), ones(1))
    resized = graph.resized(sample(graph, ones(4, 3), ones(2)), {"batch1": 3})
    assert [tuple(t.shape) for t in resized.args] == [(6, 3), (3,)]


def test_two_multiples_of_which_none_is_the_batch_itself(routed):
    graph, answered = routed(*((b, ones(2 * b), ones(3 * b, 1)) for b in (1, 2, 4)))
    assert answered(ones(6), ones(9, 1))
    assert not answered(ones(6), ones(6, 1))
    assert not answered(ones(5), ones(7, 1))
    resized = graph.resized(sample(graph, ones(4), ones(6, 1)), {"batch0": 7})  # no whole number of samples
    assert [tuple(t.shape) for t in resized.args] == [(6,), (9, 1)]
    wide = graph.with_batch_up_to(16)
    assert [dim.max for dim in wide.dims.values()] == [16, 24]


def sample(graph, *args):
    from aitune.torch.graph.sample import Sample

    return Sample(args, {}, 2)


def test_a_feature_axis_that_grew_as_the_batch_did_is_no_batch_axis(routed):
    graph, answered = routed((1, ones(1, 8)), (2, ones(2, 16)))
    assert [type(size).__name__ for size in graph.inputs.tensors[0].shape] == ["BatchDim", "DynamicDim"]
    assert answered(ones(1, 16))
    assert answered(ones(2, 9))
    grown = graph.resized(sample(graph, ones(2, 16)), {"batch0": 4})
    assert tuple(grown.args[0].shape) == (4, 16)


def test_three_batch_sizes_prove_a_multiple_on_any_axis(routed):
    _, answered = routed(*((b, ones(3, 2 * b), ones(b, 1)) for b in (1, 2, 3)))
    assert not answered(ones(3, 4), ones(3, 1))
    assert answered(ones(3, 4), ones(2, 1))


def test_without_known_batch_sizes_a_ratio_over_three_sizes_is_kept(routed):
    _, answered = routed(*((None, ones(n), ones(n * 4, 1)) for n in (2, 3, 5)))
    assert answered(ones(4), ones(16, 1))
    assert not answered(ones(4), ones(12, 1))


def test_calls_of_unknown_batch_size_may_prove_a_batch_axis_wrong(routed):
    graph, answered = routed((1, ones(2), ones(1, 1)), (2, ones(4), ones(2, 1)), (None, ones(3), ones(2, 1)))
    assert answered(ones(3), ones(2, 1))
    assert [dim.unit for dim in graph.dims.values()] == ["", "batch"]


def test_an_axis_that_was_empty_once_starts_at_one(routed):
    graph, answered = routed((None, ones(0)), (None, ones(5)))
    assert not answered(ones(0))
    assert answered(ones(1))
    assert graph.dims["dim0"].min == 1


# ------------------------------------------------------------------------------------------- declarations


def tuned(shapes, calls, backend=None, model=None):
    backend = backend or FunctionBackend(lambda job: lambda *args, **kwargs: job.forward(*args, **kwargs))
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False).enable_find_max_batch_size(False)
    # The stand-in keeps the module alive, and has the handle's names.
    handle = ait.Module(model or Total().eval(), "total", strategy, dynamic_shapes=shapes)
    handle.enable_recording()
    for batch, *args in calls:
        with batch_of(batch):
            handle(*args)
    handle.tune()
    return handle


def test_a_declaration_reaches_axes_that_follow_it():
    shapes = {"x": (ait.BatchDim("rows", 1, 16), 3)}
    handle = tuned(shapes, [(b, ones(b, 3), ones(b, 1), ones(2 * b)) for b in (1, 2)])
    (graph,) = handle.graph_specs
    assert [str(leaf) for leaf in graph.inputs.tensors] == [
        "x: float32[rows=1..16, 3]",
        "y: float32[rows=1..16, 1]",
        "z: float32[batch1=2..32]",
    ]
    for rows, others, twice, engine in (
        (16, 16, 32, True),
        (16, 15, 32, False),
        (5, 5, 12, False),
        (17, 17, 34, False),
    ):
        handle.reset_stats()
        model, args = handle.__wrapped__, (ones(rows, 3), ones(others, 1), ones(twice))
        assert torch.equal(model(*args), model._call_impl(*args))
        assert bool(handle.stats.engine_calls) is engine


def test_declared_dimensions_of_two_names_are_independent():
    shapes = {"x": (ait.BatchDim("a", 1, 8), 3), "y": (ait.DynamicDim("b", 1, 9), 1)}
    handle = tuned(shapes, [(b, ones(b, 3), ones(b, 1)) for b in (1, 2)])
    handle(ones(7, 3), ones(9, 1))
    assert handle.stats.fallbacks == {}


def test_a_declared_name_does_not_meet_an_inferred_one():
    shapes = {"x": (ait.DynamicDim("dim1", 1, 8), 3)}
    handle = tuned(
        shapes, [(None, ones(2, 3), ones(5, 1)), (None, ones(3, 3), ones(9, 1)), (None, ones(3, 3), ones(5, 1))]
    )
    (graph,) = handle.graph_specs
    assert [str(leaf) for leaf in graph.inputs.tensors] == ["x: float32[dim1=1..8, 3]", "y: float32[dim1_=5..9, 1]"]
    handle(ones(8, 3), ones(6, 1))
    assert handle.stats.fallbacks == {}


def test_a_path_need_not_be_in_every_graph():
    shapes = {"y": (ait.DynamicDim("b", 1, 9), 1)}
    handle = tuned(shapes, [(None, ones(2, 3)), (None, ones(2, 3), ones(5, 1))])
    assert len(handle.graph_specs) == 2
    handle(ones(2, 3), ones(9, 1))
    assert handle.stats.fallbacks == {}


def test_declared_from_one_size_a_real_backend_serves_the_range():
    class Scaled(torch.nn.Module):
        def forward(self, x, options):
            return {"y": torch.relu(x) * 2 + options["shift"][0]}

    shapes = {
        "x": (ait.BatchDim("b", 1, 8), ait.DynamicDim("l", 2, 9, opt=4)),
        ("options", "shift", 0): (ait.DynamicDim("l", 2, 9, opt=4),),
    }
    handle = tuned(shapes, [(None, torch.randn(2, 3), {"shift": [ones(3)]})], ONNXRuntimeBackend(), Scaled().eval())
    for batch, length, engine in ((1, 2, 1), (8, 9, 1), (5, 7, 1), (9, 2, 0), (2, 10, 0)):
        x, options = torch.randn(batch, length), {"shift": [torch.randn(length)]}
        handle.reset_stats()
        torch.testing.assert_close(handle(x, options)["y"], torch.relu(x) * 2 + options["shift"][0])
        assert sum(handle.stats.engine_calls.values()) == engine


WRONG = {
    "a rank": ({"x": (2,)}, "total: dynamic_shapes gives 1 sizes for x, which has 2 axes"),
    "a path": (
        {"w": (2,)},
        "total: dynamic_shapes names w, which is no tensor input of graph0; the tensor inputs are x",
    ),
    "a nested path": ({("x", "k"): (2,)}, r"total: dynamic_shapes names x\['k'\]"),
    "a size": ({"x": (ait.BatchDim("b", 1, 3), 3)}, "total: axis 0 of x is declared as b = 1 to 3, but a recorded"),
    "a number": ({"x": (ait.BatchDim("b", 1, 9), 4)}, "total: axis 1 of x is declared as 4, but a recorded call has 3"),
    "a shared name": (
        {"x": (ait.DynamicDim("n", 1, 9), ait.DynamicDim("n", 1, 9))},
        "total: axis 1 of x and axis 0 of x share the dimension 'n', but a recorded call has 3 and",
    ),
    "two ranges": (
        {"x": (ait.DynamicDim("n", 1, 9), 3), "y": (ait.DynamicDim("n", 1, 8), 1)},
        "total: dimension 'n' is declared twice with different ranges",
    ),
    "two kinds": (
        {"x": (ait.DynamicDim("n", 1, 9), 3), "y": (ait.BatchDim("n", 1, 9), 1)},
        "total: dimension 'n' is declared twice",
    ),
    "a flag": ({"x": (True, 3)}, "total: axis 0 of x must be a number, a DynamicDim or a BatchDim, not True"),
    "a string": ({"x": "b3"}, r"total: dynamic_shapes\['x'\] must be a tuple with one size per axis"),
    "no mapping": ([1], "total: dynamic_shapes must map parameter names or paths to sizes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_names_module_path_and_axis(name):
    shapes, said = WRONG[name]
    # The contradiction is in a call that is no sample any more: every recorded call counts.
    calls = [(None, ones(n, 3)) for n in (1, 9, 2, 8, 4, 5, 6)]
    with pytest.raises(AITuneUserInputError, match=said):
        tuned(shapes, calls)


# ------------------------------------------------------------------------- what a user sees, and partial success


def test_fifty_lengths_are_one_build_and_every_answer_is_right():
    backend = FunctionBackend(lambda job: lambda x: job.forward(x))
    handle = tuned(None, [(None, torch.randn(2, length)) for length in (1, 9, 50)], backend)
    for length in range(1, 51):
        x = torch.randn(2, length)
        assert torch.equal(handle(x), x * 2)
    assert backend.builds == 1
    assert handle.stats.fallbacks == {}


def test_graphs_print_as_a_table():
    handle = tuned(None, [(b, ones(b, 3), None, 1.5 * ones(2)) for b in (1, 2)] + [(None, ones(4))])
    assert str(handle.graph_specs).splitlines() == [
        "graph   input                       output",
        "graph0  x: float32[batch0=1..2, 3]  value: float32[batch0=1..2, 3]",
        "        y = None",
        "        z: float32[2]",
        "graph1  x: float32[4]               value: float32[4]",
        "        y = None",
        "        z = None",
    ]
    assert handle.describe().startswith("total: tuned, OneBackendStrategy")
    assert str(handle.graph_specs) in handle.describe()


def test_out_of_range_calls_log_once_what_would_cover_them(caplog):
    handle = tuned(None, [(b, ones(b, 3)) for b in (1, 2)])
    with caplog.at_level(logging.INFO, logger="aitune"):
        for batch in (9, 9, 12):
            handle(ones(batch, 3))
    (record,) = [one for one in caplog.records if "range" in one.message]
    assert "batch_sizes=[1, 9] or dynamic_shapes={'x': (BatchDim('batch0', 1, 9), 3,)}" in record.message


def always_wrong(job):
    return lambda *args: job.forward(*args) + 1


@pytest.mark.parametrize("named", [False, True])
def test_each_graph_has_its_strategy_and_one_without_an_engine_costs_the_others_nothing(named):
    good = FunctionBackend(lambda job: lambda *args: job.forward(*args))
    plans = [
        ait.FirstWinsStrategy([FunctionBackend(always_wrong)]).enable_performance_validation(False),
        ait.FirstWinsStrategy([good]).enable_performance_validation(False),
    ]
    for plan in plans:
        plan.enable_find_max_batch_size(False)
    strategies = {f"graph{i}": plan for i, plan in enumerate(plans)} if named else plans
    handle = ait.Module(Total().eval(), "total", strategies=strategies)
    handle.enable_recording()
    handle(ones(2, 3))
    handle(ones(4))
    result = handle.tune()
    assert [graph.chosen for graph in result.graphs] == ["original", "FunctionBackend()"]
    assert torch.equal(handle(ones(2, 3)), ones(2, 3) * 2)
    handle(ones(4))
    assert handle.stats.engine_calls == {"original": 1, "FunctionBackend()": 1}
    assert good.open_engines == 1
