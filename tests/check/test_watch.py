"""Comparing the outputs of many calls."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from aitune.torch.check import Check, OutputWatch, Quota, judge, run_watch
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict


def every(calls: int, wrong, right):
    counter = itertools.count(1)
    return lambda x: wrong(x) if next(counter) % calls == 0 else right(x)


def test_one_wrong_call_in_many_is_found(net, subject) -> None:
    run = every(40, lambda x: net(x) + 1, net)
    assert judge(run, subject, precision="float32").accepted  # it takes fewer calls
    found = run_watch(run, subject, precision="float32")
    assert found.verdict is Verdict.wrong
    assert "relative error" in found.reason


def test_a_right_one_passes_and_the_calls_are_said(net, subject) -> None:
    found = run_watch(net.forward, subject, precision="float32")
    assert found.accepted
    assert found.notes[-1] == "100 calls were compared, 100 of them in a row"
    assert 0 < found.error < found.bound


def test_outputs_that_differ_within_the_bound_pass(net, subject) -> None:
    found = run_watch(lambda x: net(x) * (1 + 1e-5 * torch.rand(())), subject, precision="float32")
    assert found.verdict is Verdict.accepted


def test_observed_calls_count_and_the_rest_is_made_up(net, subject) -> None:
    watch = OutputWatch(subject, precision="float32")
    x = subject.steps[1].probe.sample.args[0]
    for i in range(85):
        watch.observe(1, net(x).detach())
        if i % 10 == 0:
            watch.pass_over()
    assert (watch.compared, watch.longest_row) == (85, 10)
    calls = itertools.count()

    def run(x: torch.Tensor) -> torch.Tensor:
        next(calls)
        return net(x)

    found = watch.make_up(run, Quota())
    assert next(calls) == 20
    assert found.notes[-1] == "105 calls were compared, 20 of them in a row"


def test_a_wrong_output_that_was_observed_decides(net, subject) -> None:
    watch = OutputWatch(subject, precision="float32")
    x = subject.steps[0].probe.sample.args[0]
    watch.observe(0, net(x).detach())
    watch.observe(0, net(x).detach() + 1)
    watch.observe(0, net(x).detach())
    found = watch.judgement()
    assert found.verdict is Verdict.wrong
    assert "call 2" in found.reason
    assert watch.make_up(net.forward, Quota()) == found


def test_time_limits_the_calls_that_are_made_up(net, subject) -> None:
    ticks = itertools.count()
    found = run_watch(net.forward, subject, precision="float32", quota=Quota(seconds=30), clock=lambda: next(ticks))
    assert found.accepted
    assert found.notes[-1] == "30 calls were compared, 30 of them in a row, since the time for more, 30 s, was over"
    ticks = itertools.count(step=7)
    found = run_watch(net.forward, subject, precision="float32", quota=Quota(seconds=30), clock=lambda: next(ticks))
    assert found.notes[-1].startswith("17 calls were compared")  # four times the time for the first twenty


def test_other_samples_can_be_measured_with(net, subject) -> None:
    samples = [subject.steps[1].probe.sample, Sample((torch.randn(6, 16),), {}, 6)]
    watch = OutputWatch(subject, precision="float32", samples=samples)
    with torch.no_grad():
        for _ in range(50):
            for i, sample in enumerate(samples):
                watch.observe(i, net(sample.args[0]))
        assert watch.judgement().accepted
        watch.observe(1, net(samples[1].args[0]).flip(1).contiguous())
    assert "x[6, 16] (measured sample 1)" in watch.judgement().reason


def test_modules_with_state_or_random_numbers_start_each_call_from_the_same_state(make_batches, make_subject) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    for module in (Counting(), nn.Dropout()):
        subject = make_subject(module, make_batches(2))
        watch = OutputWatch(subject, precision="float32")
        watch.observe(0, "anything")
        assert watch.compared == 0
        assert watch.make_up(module.forward, Quota(calls=30)).accepted
        wrong = every(20, lambda x, m=module: m(x) + 1, module)
        assert not run_watch(wrong, subject, precision="float32").accepted
    off = run_watch(lambda x: F.dropout(x, 0.9), subject, precision="float32")
    assert off.verdict is Verdict.random


def test_with_a_metric_a_candidate_is_held_to_its_own_first_output(net, subject) -> None:
    check = Check(metric=lambda forward: 1.0, budget=0)
    assert run_watch(lambda x: net(x) * 3, subject, precision="int8", check=check).accepted
    run = every(20, lambda x: net(x), lambda x: net(x) * 3)
    assert run_watch(run, subject, precision="int8", check=check).verdict is Verdict.wrong


def test_an_exception_decides(net, subject) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("tired")

    found = run_watch(every(20, fail, net), subject, precision="float32")
    assert found.verdict is Verdict.wrong
    assert "raised RuntimeError: tired" in found.reason
    assert isinstance(found.cause, RuntimeError)


def test_a_module_that_changes_its_inputs_is_not_observed_on_inputs_used_before(make_batches, make_subject) -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).sum(1)

    module = Doubling()
    subject = make_subject(module, make_batches(2))
    watch = OutputWatch(subject, precision="float32")
    used = subject.steps[0].probe.sample.args[0].clone()
    for _ in range(3):
        watch.observe(0, module(used))
    assert watch.compared == 0
    assert watch.make_up(module.forward, Quota(calls=20)).accepted
