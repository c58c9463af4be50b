"""A graph takes calls apart, puts them together, and makes samples of other sizes."""

from __future__ import annotations

import pickle

import pytest
import torch

from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample, cloned
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.spec import CallSpec, Constant, TensorSpec, same_constant
from aitune.torch.graph.tree import flatten


def forward(ids, options, scale=1.0):
    return {"out": ids, "mask": options["mask"], "scale": scale}


BATCH, LENGTH, DOUBLE = BatchDim("batch0", 1, 4), DynamicDim("dim0", 3, 9), BatchDim("batch1", 2, 8)
CPU = torch.device("cpu")


@pytest.fixture
def graph():
    arguments = {"ids": None, "options": {"mask": None, "pairs": None}, "scale": 1.0}
    outputs = {"out": None, "mask": None, "scale": 1.0}
    ids = TensorSpec(("ids",), (BATCH, LENGTH), torch.int64, CPU)
    mask = TensorSpec(("options", "mask"), (BATCH, LENGTH), torch.bool, CPU)
    pairs = TensorSpec(("options", "pairs"), (DOUBLE, 2), torch.float32, CPU)
    return GraphSpec(
        name="graph0",
        signature=CallSignature.of(forward),
        inputs=CallSpec(flatten(arguments)[1], (ids, mask, pairs, Constant(("scale",), 1.0))),
        outputs=CallSpec(
            flatten(outputs)[1],
            (
                TensorSpec(("out",), (BATCH, LENGTH), torch.int64, CPU),
                TensorSpec(("mask",), (BATCH, LENGTH), torch.bool, CPU),
                Constant(("scale",), 1.0),
            ),
        ),
    )


def sample(batch, length):
    ids = torch.arange(batch * length).reshape(batch, length)
    return Sample((ids, {"mask": ids > 2, "pairs": torch.randn(2 * batch, 2)}, 1.0), {}, batch)


def test_dims_and_batch_dim(graph):
    assert list(graph.dims) == ["batch0", "dim0", "batch1"]
    assert graph.batch_dim == BATCH


def test_a_call_comes_apart_and_together(graph):
    one = sample(2, 5)
    tensors = graph.input_tensors(one.args, one.kwargs)
    args, kwargs = graph.call(tensors)
    assert kwargs == {}
    assert args[2] == 1.0
    assert args[0] is one.args[0]
    assert args[1]["pairs"] is one.args[1]["pairs"]


def test_an_output_comes_apart_and_together(graph):
    value = forward(*sample(2, 5).args)
    again = graph.output(graph.output_tensors(value))
    assert again["out"] is value["out"]
    assert again["scale"] == 1.0


def test_another_structure_is_refused(graph):
    with pytest.raises(ValueError, match="graph0"):
        graph.input_tensors((torch.zeros(1, 3), {}), {})
    with pytest.raises(ValueError, match="graph0"):
        graph.output_tensors(torch.zeros(1))


def test_axes_of_one_name_that_disagree_have_no_sizes(graph):
    one = sample(2, 5)
    one.args[1]["mask"] = one.args[1]["mask"][:, :4]
    assert graph.sizes(graph.input_tensors(one.args, one.kwargs)) is None


def test_resizing_repeats_and_slices_and_keeps_values_legal(graph):
    one = sample(2, 5)
    bigger = graph.resized(one, {"batch0": 3, "dim0": 7})
    tensors = graph.input_tensors(bigger.args, bigger.kwargs)
    assert [tuple(tensor.shape) for tensor in tensors] == [(3, 7), (3, 7), (6, 2)]
    assert set(tensors[0].flatten().tolist()) <= set(one.args[0].flatten().tolist())
    assert bigger.batch_size == 3
    smaller = graph.resized(one, {"batch0": 1})
    assert torch.equal(smaller.args[0], one.args[0][:1])
    assert tuple(smaller.args[1]["pairs"].shape) == (2, 2)


def test_a_seed_chooses_which_rows_come_first(graph):
    one = sample(3, 5)
    shifted = graph.resized(one, {"batch0": 2, "dim0": 4}, seed=2)
    assert torch.equal(shifted.args[0], one.args[0][[2, 0], :4])


def test_resizing_shares_no_memory_with_the_sample(graph):
    one = sample(2, 5)
    graph.resized(one, {}).args[0].fill_(-1)
    assert one.args[0].min() == 0


def test_widening_the_batch_keeps_proportions(graph):
    wide = graph.with_batch_up_to(16)
    assert wide.dims["batch0"].max == 16
    assert wide.dims["batch1"].max == 32
    assert wide.dims["dim0"] == LENGTH
    assert wide.outputs.tensors[0].shape[0].max == 16
    assert graph.with_batch_up_to(2) is graph


def test_a_graph_pickles_and_describes_itself(graph):
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert "ids: int64[batch0=1..4, dim0=3..9]" in graph.describe()


def test_a_fresh_sample_shares_no_memory_and_keeps_identities():
    x = torch.ones(2)
    args, _ = cloned(((x, [x]), {}))
    assert args[0] is args[1][0]
    args[0].zero_()
    assert x.sum() == 2


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        ("a", "a", True),
        (None, None, True),
        (torch.float32, torch.float32, True),
    ],
)
def test_constants_are_compared_by_type_and_value(one, two, same):
    assert same_constant(one, two) is same
