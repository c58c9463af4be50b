"""Scenarios from real bug reports, as far as they are about values."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aitune.torch.check import Check, judge
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict


def test_scenario_1_random_numbers_of_the_right_shape(net, subject) -> None:
    found = judge(lambda x: torch.randn(len(x), 8), subject, precision="int4")
    assert found.verdict is Verdict.wrong


def hilbert(size: int) -> tuple[nn.Module, list[Sample]]:
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x)

    index = torch.arange(size, dtype=torch.float64)
    return Inverse(), [Sample(((1 / (index[:, None] + index + 1)).float(),))]


@pytest.mark.parametrize("size", [8, 10, 12])
def test_scenario_1_random_numbers_and_zeros_do_not_pass_where_the_module_is_ill_conditioned(
    size, make_subject
) -> None:
    module, samples = hilbert(size)
    subject = make_subject(module, samples)
    assert subject.eager_error > 0.2
    scale = float(torch.linalg.inv(samples[0].args[0].double()).square().mean().sqrt())
    for factor in (0.0, 1.0, scale):
        found = judge(lambda x, factor=factor: torch.randn_like(x) * factor, subject, precision="float32")
        assert found.verdict is Verdict.wrong


class Overflowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(3e4 * x)


def test_scenario_2_the_float16_form_overflows(make_batches, make_subject) -> None:
    module = Overflowing().eval()
    subject = make_subject(module, make_batches(2, 4))
    half = copy.deepcopy(module).half()
    found = judge(lambda x: half(x.half()).float(), subject, precision="float16")
    assert found.verdict is Verdict.wrong
    assert "is nan at" in found.reason
    assert judge(lambda x: module.norm(x * 3e4), subject, precision="float32").accepted


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.masked_fill(torch.arange(x.shape[1]) % 4 == 0, float("-inf"))
        return torch.where(torch.arange(x.shape[1]) % 5 == 1, float("nan"), x)


def test_scenario_3_infinity_and_nan_at_known_places(make_batches, make_subject) -> None:
    module = Masked()
    subject = make_subject(module, make_batches(2, 4))
    assert judge(lambda x: module(x) * (1 + 1e-5), subject, precision="float32").accepted
    for other in (lambda x: module(x).flip(1), lambda x: module(x).nan_to_num(), lambda x: -module(x)):
        found = judge(other, subject, precision="int4")
        assert found.verdict is Verdict.wrong
        assert "where the module's is" in found.reason


def near_singular(smallest: float) -> tuple[nn.Module, list[Sample]]:
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x)

    u, _ = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))
    matrix = u @ torch.diag(torch.logspace(0, np.log10(smallest), 12, dtype=torch.float64)) @ v
    return Inverse(), [Sample((matrix.float(),))]


@pytest.mark.parametrize("smallest", [1e-4, 1e-6])
def test_scenario_4_an_ill_conditioned_operation(smallest, make_subject) -> None:
    module, samples = near_singular(smallest)
    subject = make_subject(module, samples)
    assert subject.reference.kind == "float64"
    assert subject.eager_error > 1e-5

    def by_another_algorithm(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x.t(), torch.eye(len(x))).t().contiguous()

    exact = judge(lambda x: torch.linalg.inv(x.double()).float(), subject, precision="float32")
    other = judge(by_another_algorithm, subject, precision="float32")
    assert exact.accepted, exact.reason
    assert other.accepted, other.reason
    assert judge(lambda x: torch.eye(12) / smallest, subject, precision="float32").verdict is Verdict.wrong


def by_solving(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(x.t(), torch.eye(len(x))).t().contiguous()


def in_float64(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x.double()).float()


@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_scenario_4_a_module_that_is_itself_far_off_rejects_no_good_candidate(size, make_subject) -> None:
    module, samples = hilbert(size)
    subject = make_subject(module, samples)
    assert subject.eager_error > 1e-4
    for algorithm in (in_float64, by_solving, module.forward):
        found = judge(algorithm, subject, precision="float32")
        assert found.accepted, found.reason


@pytest.mark.parametrize("size", [10, 12])
def test_scenario_4_where_the_module_returns_noise_the_noise_and_the_truth_are_right(size, make_subject) -> None:
    module, samples = hilbert(size)
    subject = make_subject(module, samples)
    assert subject.eager_error > 1
    for algorithm in (in_float64, module.forward):
        found = judge(algorithm, subject, precision="float32")
        assert found.accepted, found.reason
        assert any("size and direction" in note for note in found.notes)


def test_scenario_5_outputs_near_zero(make_batches, make_subject) -> None:
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x.sin() ** 2 + x.cos() ** 2 - 1.0], 1)

    module = Difference()
    subject = make_subject(module, make_batches(2, 4))

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full_like(x, 3e-8)], 1)

    assert judge(run, subject, precision="float32").accepted


@pytest.mark.parametrize("scale", [1e-20, 1e-38, 1e30])
def test_scenario_5_there_is_no_absolute_tolerance(scale, make_batches, make_subject) -> None:
    class Tiny(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale

    subject = make_subject(Tiny(), make_batches(2, 4))
    assert judge(lambda x: x * scale * 1.00001, subject, precision="float32").accepted
    assert judge(lambda x: x * scale * 1.01, subject, precision="float32").verdict is Verdict.wrong
    assert judge(torch.zeros_like, subject, precision="int4").verdict is Verdict.wrong


def test_scenario_6_the_shape_of_the_output_depends_on_data(make_subject) -> None:
    class Unique(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.unique(x), x.nonzero()

    module = Unique()
    subject = make_subject(module, [Sample((torch.randint(0, 5, (size,)),), {}, size) for size in (3, 8, 12)])
    assert judge(module.forward, subject, precision="float32").accepted
    padded = judge(lambda x: (torch.unique(x), F.pad(x.nonzero(), (0, 0, 0, 1))), subject, precision="float32")
    assert padded.verdict is Verdict.wrong
    assert "output[1] has shape" in padded.reason


def test_scenario_7_integers_are_compared_exactly_or_by_the_users_metric(make_batches, make_subject) -> None:
    class Classes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    module, samples = Classes(), make_batches(200)
    data = samples[0].args[0]
    truth = data.argmax(1)

    def one_in_a_hundred_off(x: torch.Tensor) -> torch.Tensor:
        classes = x.argmax(1)
        classes[::100] += 1
        return classes

    subject = make_subject(module, samples)
    assert judge(one_in_a_hundred_off, subject, precision="int8").verdict is Verdict.wrong
    check = Check(metric=lambda forward: float((forward(data) == truth).float().mean()), budget=0.02)
    found = judge(one_in_a_hundred_off, subject, precision="int8", check=check)
    assert found.accepted, found.reason
    assert found.metric == pytest.approx(0.99)


def test_scenario_8_a_metric_with_a_budget(make_batches, make_subject) -> None:
    class Logits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.sum(1), -x.sum(1)], 1)

    module, samples = Logits(), make_batches(200)
    data = samples[0].args[0]
    labels = module(data).argmax(1)
    check = Check(metric=lambda forward: float((forward(data).argmax(1) == labels).float().mean()), budget=0.01)
    subject = make_subject(module, samples, check=check)
    assert subject.metric == 1.0
    margin = data.sum(1).abs().sort().values

    def losing(share: int) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            out = module(x)
            return torch.where((x.sum(1).abs() < margin[share])[:, None], -out, out)

        return run

    worse = judge(losing(10), subject, precision="int8")
    similar = F.cosine_similarity(losing(10)(data).flatten(), module(data).flatten(), dim=0)
    assert similar > 0.99
    assert worse.verdict is Verdict.wrong
    assert "the metric is 0.95, the module's own is 1" in worse.reason
    good = judge(losing(2), subject, precision="int8")
    assert good.accepted
    assert good.metric == pytest.approx(0.99)
    assert good.bound is None


def test_scenario_17_tensors_without_dimensions(make_subject) -> None:
    class Scalar(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    subject = make_subject(Scalar(), [Sample((torch.tensor(value),)) for value in (1.5, 2.5)])
    assert judge(lambda x: x + x, subject, precision="float32").accepted
    assert judge(lambda x: x + 1.5, subject, precision="float32").verdict is Verdict.wrong
    assert judge(lambda x: (x * 2).reshape(1), subject, precision="float32").verdict is Verdict.wrong


def test_scenario_22_forward_changes_its_input(make_batches, make_subject) -> None:
    class Clipping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).clamp_(-1, 1).sum(1)

    module, samples = Clipping(), make_batches(2, 4)
    before = [sample.args[0].clone() for sample in samples]
    subject = make_subject(module, samples)
    assert judge(module.forward, subject, precision="float32").accepted
    twice = judge(lambda x: module(x.mul_(2)) * 0 + x.sum(1), subject, precision="float32")
    assert twice.verdict is Verdict.wrong
    lost = judge(lambda x: module(x.clone()), subject, precision="float32")
    assert "the input x is not changed by the call" in lost.reason
    assert all(torch.equal(a, sample.args[0]) for a, sample in zip(before, samples, strict=True))


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", torch.zeros(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[self.calls] = x[0] * self.scale
        self.calls += 1
        return self.cache.sum(0) + x


def test_scenario_23_counters_and_caches(make_batches, make_subject) -> None:
    module = Cached()
    module(torch.randn(1, 16))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    subject = make_subject(module, make_batches(1, 3))
    assert subject.stateful
    right = judge(module.forward, subject, precision="float32")
    assert right.accepted, right.reason

    def twice(x: torch.Tensor) -> torch.Tensor:
        module(x)
        return module(x)

    def not_at_all(x: torch.Tensor) -> torch.Tensor:
        return (module.cache.sum(0) + x[0] * module.scale) + x

    for wrong in (twice, not_at_all):
        assert judge(wrong, subject, precision="float32").verdict is Verdict.wrong
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * self.scale, 0.5, training=True)


@pytest.mark.parametrize("module", [Dropping().eval(), nn.Dropout(0.5).train()], ids=["functional", "in train()"])
def test_scenario_26_dropout(module, make_batches, make_subject) -> None:
    samples = make_batches(2, 4)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    subject = make_subject(module, samples)
    assert subject.random
    assert subject.reference.kind == "eager"

    assert judge(module.forward, subject, precision="float32").accepted
    off = judge(lambda x: x * 1.0, subject, precision="float32")
    assert off.verdict is Verdict.random
    assert "random numbers" in off.reason

    def other_numbers(x: torch.Tensor) -> torch.Tensor:
        return x * torch.bernoulli(torch.full_like(x, 0.5), generator=torch.Generator().manual_seed(1)) * 2

    assert judge(other_numbers, subject, precision="float32").verdict is Verdict.random
    assert judge(lambda x: F.dropout(x, 0.5)[:1], subject, precision="float32").verdict is Verdict.wrong
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002


def test_scenario_26_noise_that_ends_up_in_nothing_need_not_be_drawn(make_batches, make_subject) -> None:
    class Warming(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.rand(3)
            return x + 1

    subject = make_subject(Warming(), make_batches(2, 4))
    assert not subject.random
    assert judge(lambda x: x + 1, subject, precision="float32").accepted


def test_scenario_33_the_first_answer_outlives_the_second_call(net, subject) -> None:
    buffer = torch.empty(8, 8)

    @torch.no_grad()
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(net.second.bias, net.first(x).relu(), net.second.weight.t(), out=buffer[: len(x)])

    found = judge(run, subject, precision="float32")
    assert found.verdict is Verdict.wrong
    assert "earlier call" in found.reason
    assert judge(lambda x: run(x).clone(), subject, precision="float32").accepted
