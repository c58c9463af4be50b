"""Candidates that are right, in ways that a strict comparison would reject."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from aitune.torch.check import Check, judge
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * self.weight)


@dataclass
class Answer:
    logits: torch.Tensor
    label: str = "a"
    hidden: Any = None


def in_double(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    return copy.deepcopy(module).double()(x.double()).float()


def test_the_module_itself_is_right_and_has_its_own_error(net, subject) -> None:
    found = judge(net.forward, subject, precision="float32")
    assert found.accepted
    assert found.error == subject.eager_error
    assert 0 < found.error < 1e-6
    assert found.bound == 1e-4
    assert found.calls == len(subject.steps)


def test_what_is_more_exact_than_the_module_is_right(net, subject) -> None:
    found = judge(lambda x: in_double(x, net), subject, precision="float32")
    assert found.accepted
    assert found.error < 1e-7


@pytest.mark.parametrize(("precision", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
def test_a_lower_precision_is_right_if_it_is_declared(net, subject, precision, dtype) -> None:
    low = copy.deepcopy(net).to(dtype)
    found = judge(lambda x: low(x.to(dtype)).float(), subject, precision=precision)
    assert found.accepted, found.reason
    assert found.error > 1e-4


def test_eight_bit_weights_are_right_if_they_are_declared(net, subject) -> None:
    low = copy.deepcopy(net)
    for parameter in low.parameters():
        step = parameter.abs().max() / 127
        parameter.data = (parameter / step).round() * step
    assert judge(low.forward, subject, precision="int8").accepted
    assert judge(low.forward, subject, precision="float32").verdict is Verdict.wrong


def test_a_16_bit_module_is_held_to_what_16_bits_allow(make_net, make_batches, make_subject) -> None:
    module = make_net().eval().to(torch.bfloat16)
    samples = [Sample((sample.args[0].to(torch.bfloat16),), {}, sample.batch_size) for sample in make_batches(1, 4)]
    subject = make_subject(module, samples)
    assert subject.reference.kind == "float32"
    assert 1e-4 < subject.eager_error < 1e-1
    exact = copy.deepcopy(module).float()
    found = judge(lambda x: exact(x.float()).to(torch.bfloat16), subject, precision="float32")
    assert found.accepted, found.reason


def test_a_float64_module_is_compared_with_itself(make_net, make_batches, make_subject) -> None:
    module = make_net().eval().double()
    samples = [Sample((sample.args[0].double(),), {}, sample.batch_size) for sample in make_batches(1, 4)]
    subject = make_subject(module, samples)
    assert subject.reference.kind == "eager"
    assert "no precision above float64" in subject.reference.reason
    assert judge(module.forward, subject, precision="float64").accepted
    low = copy.deepcopy(module).float()
    found = judge(lambda x: low(x.float()).double(), subject, precision="float64")
    assert found.verdict is Verdict.wrong


def test_another_order_of_summation_is_right(make_subject) -> None:
    module = Of(lambda x: x.sum(1)).eval()
    subject = make_subject(module, [Sample((torch.randn(4, 1000),))])
    assert judge(lambda x: x.view(4, 10, 100).sum(2).sum(1), subject, precision="float32").accepted


def test_a_contiguous_copy_may_stand_for_a_view(make_subject) -> None:
    module = Of(lambda x: x.t()).eval()
    subject = make_subject(module, [Sample((torch.randn(4, 6),))])
    assert judge(lambda x: (x * 1).t().contiguous(), subject, precision="float32").accepted


def test_types_and_leaves_that_are_no_tensors_are_compared_and_pass(make_subject) -> None:
    module = Of(lambda x: {"a": [Answer(x + 1, "b", None), (x > 0, 3, True)], "b": float("nan"), "c": float(x.sum())})
    subject = make_subject(module.eval(), [Sample((torch.randn(4, 6),))])
    assert subject.unjudgeable is None
    found = judge(module.forward, subject, precision="float32")
    assert found.accepted, found.reason


def test_an_output_that_is_all_zeros_must_be_all_zeros(make_subject) -> None:
    module = Of(lambda x: x.clamp(max=-100) * 0).eval()
    subject = make_subject(module, [Sample((torch.randn(4, 6),))])
    assert judge(module.forward, subject, precision="float32").accepted
    assert (
        judge(lambda x: m * 1e-30 if (m := x) is not None else m, subject, precision="float32").verdict is Verdict.wrong
    )


def test_what_cancels_to_nothing_but_rounding_is_judged_by_the_size_of_that(make_subject) -> None:
    module = Of(lambda x: (x.sum(1) / 3 - (x / 3).sum(1), x * 2)).eval()
    subject = make_subject(module, [Sample((torch.randn(64, 100),))])

    def in_another_order(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flip(1).sum(1) / 3 - (x.flip(1) / 3).sum(1), x * 2

    assert judge(in_another_order, subject, precision="float32").accepted
    assert judge(lambda x: (x.sum(1) * 1e-3, x * 2), subject, precision="float32").verdict is Verdict.wrong


def test_one_score_near_zero_among_large_ones_does_not_count_for_more(make_subject) -> None:
    module = Of(lambda x: x.sum(1)).eval()
    samples = [Sample((torch.tensor([[2.0, value]]),)) for value in (1.0, 3.0, -1.9999, 2.0)]
    subject = make_subject(module, samples)
    found = judge(lambda x: x.sum(1) + 1e-3, subject, precision="float16")
    assert found.accepted, found.reason
    assert judge(lambda x: x.sum(1) + 0.3, subject, precision="float16").verdict is Verdict.wrong


def test_few_large_outputs_among_many_small_ones_carry_the_error(make_subject) -> None:
    module = Of(lambda x: (x * 8).softmax(0)).eval()
    subject = make_subject(module, [Sample((torch.randn(30_000),))])
    noise = torch.randn(30_000) * 0.02
    found = judge(lambda x: (x * 8 + noise).softmax(0), subject, precision="int8")
    assert found.accepted, found.reason


def test_a_row_that_is_much_larger_than_the_others_is_held_to_its_own_size(make_subject) -> None:
    module = Of(lambda x: x * 1.0).eval()
    x = torch.randn(4096, 8)
    x[17] *= 1e4
    subject = make_subject(module, [Sample((x,))])
    assert judge(lambda x: x * (1 + 5e-5), subject, precision="float32").accepted


def test_a_bound_of_the_user_replaces_ours(net, subject) -> None:
    half = copy.deepcopy(net).half()

    def run(x: torch.Tensor) -> torch.Tensor:
        return half(x.half()).float()

    assert judge(run, subject, precision="float32", check=Check(max_error=1e-2)).accepted
    found = judge(run, subject, precision="float16", check=Check(max_error=1e-6))
    assert found.verdict is Verdict.wrong
    assert "the bound that was set" in found.reason
    assert judge(net.forward, subject, precision="float32", check=Check(max_error=0)).accepted


def test_a_judgement_pickles_without_the_exception(subject) -> None:
    class Unpicklable(Exception):
        pass

    def run(x: torch.Tensor) -> torch.Tensor:
        raise Unpicklable("no")

    found = judge(run, subject, precision="float32")
    assert isinstance(found.cause, Unpicklable)
    again = pickle.loads(pickle.dumps(found))
    assert again.cause is None
    assert again.reason == found.reason


def test_memory_that_the_module_itself_hands_out_twice_may_be_shared(make_subject) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(5, 3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.table

    module = Positions()
    subject = make_subject(module, [Sample((torch.randn(2, 3),))])
    assert judge(module.forward, subject, precision="float32").accepted


def test_a_cache_that_fills_by_itself_is_no_state(make_batches, make_subject) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angles = torch.zeros(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.angles) < len(x):
                self.angles = torch.arange(float(len(x))).cos()
            return x * self.angles[: len(x), None]

    module = Rotary()
    subject = make_subject(module, make_batches(2, 9))
    assert not subject.stateful
    assert len(module.angles) == 0
    table = torch.arange(64.0).cos()
    assert judge(lambda x: x * table[: len(x), None], subject, precision="float32").accepted
    assert judge(module.forward, subject, precision="float32").accepted
    assert len(module.angles) == 0


def test_a_form_of_calls_that_no_sample_has_may_be_refused_but_not_answered_wrong(net, subject) -> None:
    found = judge(lambda row: net(row), subject, precision="float32")
    assert found.accepted
    assert found.notes[-1] == "it does not take sample 1 by keyword (TypeError)"


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_the_module_under_a_mode_of_the_caller_is_right(net, make_batches, make_subject, mode) -> None:
    with mode():
        subject = make_subject(net, make_batches(1, 4))
        assert judge(net, subject, precision="float32").accepted
