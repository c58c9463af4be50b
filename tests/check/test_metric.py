"""A user's metric in place of distances."""

from __future__ import annotations

import pytest
import torch

from aitune.torch.check import Check, judge
from aitune.torch.check.metric import metric_mismatch
from aitune.torch.trial import Verdict


@pytest.mark.parametrize(
    ("candidate", "higher_is_better", "accepted"),
    [(0.89, True, True), (0.88, True, False), (0.99, True, True), (0.91, False, True), (0.92, False, False)],
)
def test_the_budget_is_one_sided(candidate, higher_is_better, accepted) -> None:
    check = Check(metric=abs, budget=0.01, higher_is_better=higher_is_better)
    assert (metric_mismatch(check, candidate, 0.9) is None) == accepted


def test_no_number_is_within_no_budget() -> None:
    assert metric_mismatch(Check(metric=abs, budget=1e9), float("nan"), 0.9) is not None


def test_calls_of_other_graphs_go_to_the_module(net, subject) -> None:
    sizes: list[int] = []

    def candidate(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return net(x)

    check = Check(
        metric=lambda forward: float(forward(torch.ones(3, 16)).sum() + forward(torch.ones(99, 16)).sum()), budget=1
    )
    found = judge(candidate, subject, precision="float32", check=check)
    assert found.accepted
    assert 99 not in sizes
    assert sizes[-1] == 3


def test_a_graph_that_the_metric_never_calls_is_held_to_the_bound(net, subject) -> None:
    check = Check(metric=lambda forward: float(forward(torch.ones(99, 16)).sum()), budget=1)
    found = judge(lambda x: net(x) * 1.1, subject, precision="float32", check=check)
    assert found.verdict is Verdict.wrong
    assert "relative error" in found.reason
    found = judge(net.forward, subject, precision="float32", check=check)
    assert found.accepted
    assert "the metric makes no call within the range of this graph" in found.notes[0]


def test_structure_places_and_effects_are_compared_beside_a_metric(net, subject) -> None:
    check = Check(metric=lambda forward: float(forward(torch.ones(3, 16)).shape[0]), budget=0)
    for wrong in (
        lambda x: [net(x)],
        lambda x: net(x).double(),
        lambda x: torch.full_like(net(x), float("nan")),
        lambda x: net(x.zero_()),
    ):
        assert judge(wrong, subject, precision="int8", check=check).verdict is Verdict.wrong
    found = judge(lambda x: net(x) * 3, subject, precision="int8", check=check)
    assert found.accepted
    assert found.error == pytest.approx(2)
    assert found.bound is None


def test_what_a_candidate_raises_under_the_metric_is_its_own_fault(net, subject) -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        if (x == 1).all():
            raise RuntimeError("ones")
        return net(x)

    check = Check(metric=lambda forward: float(forward(torch.ones(3, 16)).sum()), budget=0)
    found = judge(candidate, subject, precision="float32", check=check)
    assert found.verdict is Verdict.wrong
    assert "raised RuntimeError: ones" in found.reason
