"""Preparing an examination."""

from __future__ import annotations

import functools
import random
import threading

import pytest
import torch
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.torch.check import Check, judge, prepare
from aitune.torch.check.manner import Manner
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict


def test_the_questions_begin_with_the_samples_and_end_with_repetitions(net, make_batches, make_subject) -> None:
    subject = make_subject(net, make_batches(1, 4, 8))
    labels = [step.probe.label for step in subject.steps]
    assert labels[:3] == ["sample 0", "sample 1", "sample 2"]
    assert "batch0=5" in labels
    assert labels[-5:] == ["sample 0", "sample 0 with other contents", "sample 0", "sample 1", "sample 0"]
    assert [step.scribble for step in subject.steps[-5:]] == [False, False, True, False, True]


def test_what_the_module_itself_raises_on_a_sample_is_passed_on(make_batches, make_graph) -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("mine")

    module, samples = Raising(), make_batches(1)
    with pytest.raises(LookupError, match="mine"):
        prepare(module, make_graph(module, samples), samples)


def test_a_size_on_which_the_module_itself_raises_is_left_out_with_a_note(make_batches, make_subject) -> None:
    class Even(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2 * 16) * 2.0

    module = Even()
    subject = make_subject(module, make_batches(2, 8))
    assert any("not checked at batch0=5: the module itself raises RuntimeError" in note for note in subject.notes)
    found = judge(module.forward, subject, precision="float32")
    assert found.accepted
    assert any("batch0=5" in note for note in found.notes)


def test_without_samples_there_is_nothing_to_ask(net, make_batches, make_graph) -> None:
    with pytest.raises(ValueError, match="no sample"):
        prepare(net, make_graph(net, make_batches(1)), [])


def test_a_module_that_never_does_the_same_twice_cannot_be_judged(make_batches, make_subject) -> None:
    class Clock(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + random.SystemRandom().random()

    module = Clock()
    subject = make_subject(module, make_batches(2))
    found = judge(module.forward, subject, precision="float32")
    assert found.verdict is Verdict.random
    assert "does not do the same twice" in found.reason


def test_outputs_that_cannot_be_compared_cannot_be_judged(make_batches, make_subject) -> None:
    class Thing:
        pass

    class Opaque(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Thing]:
            return x, Thing()

    subject = make_subject(Opaque(), make_batches(2))
    found = judge(Opaque().forward, subject, precision="float32")
    assert found.verdict is Verdict.unsupported
    assert "output[1] is a " in found.reason


def test_a_generator_of_its_own_is_put_back_before_each_call(make_batches, make_subject) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape, generator=self.generator)

    module = Noisy()
    state = module.generator.get_state()
    subject = make_subject(module, make_batches(2))
    assert subject.unjudgeable is None
    assert judge(module.forward, subject, precision="float32").accepted
    assert subject.random
    assert (
        judge(lambda x: x + module.forward(x) - module.forward(x), subject, precision="float32").verdict
        is Verdict.random
    )
    assert torch.equal(module.generator.get_state(), state)


def test_a_cache_with_an_end_is_not_filled_beyond_it(make_batches, make_subject) -> None:
    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("used", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.used >= 2:
                raise IndexError("full")
            self.used += 1
            return x * 2.0

    module = Limited()
    subject = make_subject(module, make_batches(1, 4, 8))
    assert subject.stateful
    assert judge(module.forward, subject, precision="float32").accepted
    assert int(module.used) == 0


def test_the_metric_is_measured_once_and_must_be_a_number(net, make_batches, make_subject) -> None:
    calls = []

    def metric(forward):
        calls.append(forward)
        return float(forward(torch.ones(4, 16)).sum())

    subject = make_subject(net, make_batches(1, 4), check=Check(metric=metric, budget=0.1))
    assert len(calls) == 1
    assert judge(net.forward, subject, precision="float32").accepted
    assert len(calls) == 2
    for value in (float("nan"), "good"):
        with pytest.raises(AITuneUserInputError, match="metric"):
            make_subject(net, make_batches(1, 4), check=Check(metric=lambda _, v=value: v, budget=0.1))


def test_samples_of_one_module_that_needs_grad_are_left_alone(net, make_graph) -> None:
    sample = Sample((torch.randn(4, 16, requires_grad=True),), {}, 4)
    subject = prepare(net, make_graph(net, [sample]), [sample])
    assert judge(net.forward, subject, precision="float32").accepted
    assert sample.args[0].grad is None
    assert sample.args[0].requires_grad


def test_outputs_that_would_fill_the_memory_are_not_all_asked_for(net, make_batches, make_subject, monkeypatch) -> None:
    monkeypatch.setattr("aitune.torch.check.rehearsal.free_bytes", lambda _: 1000)
    subject = make_subject(net, make_batches(1, 4, 8))
    kept = {id(step.expectation): step.probe for step in subject.steps if step.probe.recorded}
    assert {id(step.expectation) for step in subject.steps} == kept.keys()
    assert {probe.label for probe in kept.values()} == {"sample 0", "sample 1", "sample 2"}
    assert any("would take too much memory" in note for note in subject.notes)


def test_a_small_call_is_asked_in_every_manner(net, make_batches, make_subject) -> None:
    labels = [step.probe.label for step in make_subject(net, make_batches(1, 4, 8)).steps]
    ways = ["by keyword", *(manner.value for manner in Manner if manner is not Manner.PLAIN)]
    start = labels.index("sample 1 by keyword")
    assert labels[start : start + len(ways)] == [f"sample 1 {way}" for way in ways]


def test_where_the_module_itself_does_something_else_or_raises_nothing_is_asked(make_batches, make_subject) -> None:
    class Particular(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_inference_mode_enabled():
                raise LookupError("mine")
            if threading.current_thread() is not threading.main_thread():
                raise LookupError("elsewhere")
            return x * (3 if torch.is_grad_enabled() else 2)

    module = Particular().eval()
    subject = make_subject(module, make_batches(4))
    labels = {step.probe.label for step in subject.steps}
    assert "sample 0 by keyword" in labels
    assert not {f"sample 0 {manner.value}" for manner in (Manner.GRADIENTS, Manner.INFERENCE, Manner.THREAD)} & labels
    notes = " ".join(subject.notes)
    assert "with gradients enabled: the module itself does something else there" in notes
    assert "in inference mode: the module itself raises LookupError (mine)" in notes
    assert judge(module.forward, subject, precision="float32").accepted


def test_a_decorated_forward_is_not_asked_with_defaults_that_were_left_out(make_batches, make_subject) -> None:
    def filled(function):
        @functools.wraps(function)
        def call(self, x, scale=None):
            assert scale is None or isinstance(scale, float)
            return function(self, x, 2.0 if scale is None else scale)

        return call

    class Decorated(nn.Module):
        @filled
        def forward(self, x: torch.Tensor, scale: float = 5.0) -> torch.Tensor:
            return x * scale

    module = Decorated()
    subject = make_subject(module, make_batches(4))
    assert "sample 0 by keyword" in {step.probe.label for step in subject.steps}
    assert judge(module.forward, subject, precision="float32").accepted


def test_a_module_that_waits_for_the_thread_that_tunes_is_not_asked_in_another(
    make_batches, make_subject, monkeypatch
) -> None:
    monkeypatch.setattr("aitune.torch.check.manner._PATIENCE", 0.2)
    lock = threading.RLock()

    class Locked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with lock:
                return x * 2

    with lock:
        subject = make_subject(Locked(), make_batches(4))
    assert any("in another thread: the module itself raises TimeoutError" in note for note in subject.notes)


def test_further_sizes_and_manners_are_left_out_where_the_module_takes_long(
    net, make_batches, make_subject, monkeypatch
) -> None:
    monkeypatch.setattr("aitune.torch.check.rehearsal._SPARE_AFTER", -1.0)
    monkeypatch.setattr("aitune.torch.check.variations._SECONDS", -1.0)
    subject = make_subject(net, make_batches(1, 16))
    labels = {step.probe.label for step in subject.steps}
    assert "batch0=9" in labels
    assert not {"batch0=3", "batch0=13", "sample 1 by keyword"} & labels
    assert any("batch0=3: calls of the module take long" in note for note in subject.notes)


def test_where_calls_of_modules_are_followed_no_other_thread_is_used(net, make_batches, make_subject) -> None:
    net.first.compile(backend="eager")  # takes the place that a follower takes
    labels = {step.probe.label for step in make_subject(net, make_batches(4)).steps}
    assert "sample 0 in inference mode" in labels
    assert "sample 0 in another thread" not in labels
