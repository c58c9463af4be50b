"""A dry run says what would be tried and what would not."""

import pytest

from aitune.torch.report import Candidate, GraphPlan, plan_text

PLAN = GraphPlan(
    "encoder",
    "graph0",
    "graph0(x: float32[batch0=1..8, 16]) -> float32[batch0=1..8, 4]",
    (
        Candidate("ONNXRuntimeBackend()"),
        Candidate("TensorRTBackend()", "needs cuda, the module is on cpu"),
        Candidate("OpenVINOBackend()"),
    ),
    "MaxThroughputStrategy()",
    "one batch size only: shapes are static",
)


def test_candidates_are_numbered_in_their_order_and_unsuitable_ones_have_their_reason():
    assert plan_text([PLAN], width=100).splitlines() == [
        "Dry run: nothing is changed. This would be tried for 1 graph:",
        "",
        "encoder, graph0, MaxThroughputStrategy()",
        "  graph0(x: float32[batch0=1..8, 16]) -> float32[batch0=1..8, 4]",
        "  note: one batch size only: shapes are static",
        "  1. ONNXRuntimeBackend()",
        "  2. OpenVINOBackend()",
        "  not: TensorRTBackend(): needs cuda, the module is on cpu",
    ]


def test_a_graph_without_a_suitable_candidate_says_what_follows():
    assert "no candidate suits it, so it would stay as it is" in plan_text([GraphPlan("m", "graph0")], width=100)


def test_no_graph_says_so():
    assert plan_text([]) == "Dry run: nothing would be tried, no call of a module was recorded."


@pytest.mark.parametrize("width", [40, 80])
def test_long_lines_are_wrapped(width):
    assert max(map(len, plan_text([PLAN, PLAN], width).splitlines())) <= max(width, 62)
