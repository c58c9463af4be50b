"""A strategy or an engine that fails in an odd way costs its own module or call, and never the whole tune."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch.trial import Trial, Verdict


class Chooses(ait.TuneStrategy):
    """Tries its backends, and chooses what a function of the trials says."""

    def __init__(self, choice, *backends):
        super().__init__()
        self.enable_performance_validation(False).enable_find_max_batch_size(False)
        self.choice = choice
        self.backends = backends

    def candidates(self, device):
        return self.backends

    def choose(self, bench):
        return self.choice([bench.try_(backend) for backend in self.backends])


class CannotList(Chooses):
    def candidates(self, device):
        raise RuntimeError("no list")


@pytest.fixture
def wrong():
    return FunctionBackend(lambda job: lambda x: x[..., :3] * 0, FunctionBackendConfig("wrong"))


def tuned_beside(model, samples, strategy, always):
    """Tune a module by a strategy, and another one after it; returns the result."""
    first, second = ait.Module(model, "first", strategy), ait.Module(torch.nn.Linear(3, 2).eval(), "second", always())
    return ait.tune(lambda x: second(first(x)), samples)


def only(result):
    """Return the result of the one module, which may have got another name than was asked for."""
    (found,) = result.modules.values()
    return found


CHOICES = {
    "refused": lambda trials: trials[1],
    "copied": lambda trials: replace(trials[0]),
    "forged": lambda trials: Trial(backend="Made up()", verdict=Verdict.accepted),
    "none": lambda trials: None,
    "text": lambda trials: "the first",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_that_cannot_be_used_is_its_modules_error(model, samples, double_agent, wrong, always, choice):
    right = double_agent("right")
    x = torch.randn(2, 4)
    before = model(x)
    result = tuned_beside(model, samples, Chooses(CHOICES[choice], right, wrong), always)
    assert result.modules["first"].error is not None
    assert [trial.verdict for trial in result.modules["first"].graphs[0].trials] == [Verdict.accepted, Verdict.wrong]
    assert result.modules["second"].graphs[0].chosen != "original"
    assert right.open_engines == 0
    assert torch.equal(model(x), before)


def test_a_trial_of_another_tune_is_its_modules_error(model, samples, double_agent, always):
    elsewhere = []
    strategy = Chooses(lambda trials: elsewhere.append(trials[0]) or trials[0], double_agent())
    ait.tune(ait.Module(torch.nn.Linear(4, 3).eval(), "elsewhere", strategy), samples)
    result = tuned_beside(model, samples, Chooses(lambda _: elsewhere[0], double_agent()), always)
    assert isinstance(result.modules["first"].error, ValueError)
    assert result.modules["second"].graphs[0].chosen != "original"


def test_a_strategy_that_cannot_list_its_candidates_is_its_modules_error(model, samples, double_agent, always):
    result = tuned_beside(model, samples, CannotList(lambda trials: trials[0], double_agent()), always)
    assert "no list" in result.modules["first"].failure_text
    assert result.modules["second"].graphs[0].chosen != "original"


def test_a_backend_without_a_description_costs_itself_alone(model, samples, double_agent):
    def describe(self):
        raise RuntimeError("plugin bug")

    silent = type("Silent", (FunctionBackend,), {"describe": describe})(lambda job: job.forward)
    strategy = ait.MaxThroughputStrategy([silent, double_agent()])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    result = ait.tune(ait.Module(model, "odd", strategy), samples)
    first, second = only(result).graphs[0].trials
    assert (first.backend, first.verdict) == ("Silent", Verdict.build_failed)
    assert "plugin bug" in first.reason
    assert second.accepted
    assert "plugin bug" in str(result)


def test_an_engine_that_exits_at_a_call_is_retired(model, samples, always):
    def make(job):
        def run(x):
            if x[0, 0] == 77:
                raise SystemExit("engine")
            return job.forward(x)

        return run

    wrapped = ait.Module(model, "odd", always(FunctionBackend(make)))
    ait.tune(wrapped, samples)
    x = torch.full((2, 4), 77.0)
    with torch.no_grad():
        assert torch.equal(wrapped(x), ait.handle(wrapped).original()(x))
    assert ait.handle(wrapped).stats.fallbacks == {"engine failed": 1}


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(1)])
def test_untune_does_not_fail_on_an_engine_that_cannot_be_closed(model, samples, always, error):
    class Stuck(FunctionBackend):
        def build(self, job):
            engine = super().build(job)

            def close():
                raise error

            engine.close = close
            return engine

    wrapped = ait.Module(model, "odd", always(Stuck(lambda job: job.forward)))
    ait.tune(wrapped, samples)
    ait.handle(wrapped).untune()
    assert not ait.handle(wrapped).serves
    with torch.no_grad():
        assert wrapped(torch.randn(2, 4)).shape == (2, 3)


@pytest.mark.parametrize("limits", [{"time_limit": math.inf}, {"backend_time_limit": math.inf}, {"time_limit": 1e300}])
def test_an_infinite_time_limit_is_none(model, samples, always, limits):
    result = ait.tune(ait.Module(model, "odd", always()), samples, **limits)
    assert only(result).graphs[0].chosen != "original"
    assert result.complete


def test_an_infinite_time_limit_of_strategy_and_configuration_is_none(model, samples, always, monkeypatch):
    monkeypatch.setattr(ait.config, "backend_time_limit", math.inf)
    result = ait.tune(ait.Module(model, "odd", always(time_limit=math.inf)), samples)
    assert only(result).graphs[0].chosen != "original"


@pytest.mark.parametrize("limit", [math.nan, 0, -1, 10**400, "10", True])
def test_a_time_limit_of_a_strategy_that_cannot_be_is_named(always, limit):
    with pytest.raises(AITuneUserInputError, match="time_limit"):
        always(time_limit=limit)
