"""A candidate that fails in an odd way costs itself alone: the bench never raises, and its row says why."""

from __future__ import annotations

import pytest

from aitune.testing import FunctionBackend, FunctionBackendConfig, fake_bench, timed_backend
from aitune.torch.bench import Rules
from aitune.torch.trial import Verdict


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raising(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def odd_backend(**methods):
    kind = type("OddBackend", (FunctionBackend,), methods)
    return kind(lambda job: job.forward, FunctionBackendConfig("odd"))


def odd_engine(**facts):
    """A backend whose engine is right and says odd things of itself."""

    def build(self, job):
        engine = FunctionBackend.build(self, job)
        for name, value in facts.items():
            setattr(engine, name, value)
        return engine

    return odd_backend(build=build)


def tried(backend, rules=None):
    """Try a candidate and a good one after it; returns the first one's trial."""
    with fake_bench(rules=rules or Rules(find_batch_size=False)) as bench:
        trial = bench.try_(backend)
        assert bench.try_(timed_backend("good", 0.5)).accepted
        assert bench.trials[0] is trial
        if not trial.accepted:
            assert isinstance(bench.error(trial), Exception)
    return trial


@pytest.mark.parametrize("error", [SilentError(), SystemExit(3)])
def test_whatever_a_build_raises_is_its_verdict(error):
    trial = tried(FunctionBackend(raising(error)))
    assert trial.verdict is Verdict.build_failed
    assert type(error).__name__ in trial.reason


@pytest.mark.parametrize("error", [SilentError(), SystemExit(3)])
@pytest.mark.parametrize("calls", [0, 40])
@pytest.mark.parametrize("correctness", [True, False])
def test_whatever_an_engine_raises_is_its_verdict(error, calls, correctness):
    made = []

    def answer(x):
        made.append(1)
        if len(made) > calls:
            raise error
        return x * 2

    trial = tried(timed_backend("odd", 0.5, answer), Rules(find_batch_size=False, correctness=correctness))
    assert not trial.accepted
    assert type(error).__name__ in trial.reason


@pytest.mark.parametrize("error", [RuntimeError("plugin bug"), SilentError(), SystemExit(3)])
@pytest.mark.parametrize("name", ["unsuitable", "describe"])
def test_a_backend_that_cannot_be_asked_is_a_failed_candidate(name, error):
    trial = tried(odd_backend(**{name: raising(error)}))
    assert trial.verdict is Verdict.build_failed
    assert name in trial.reason
    assert type(error).__name__ in trial.reason


@pytest.mark.parametrize("name", ["safe_in_process", "name", "contained", "requires"])
def test_a_fact_of_a_backend_that_raises_is_a_failed_candidate(name):
    trial = tried(odd_backend(**{name: property(raising(RuntimeError("plugin bug")))}))
    assert trial.verdict is Verdict.build_failed
    assert "plugin bug" in trial.reason


def test_a_description_that_is_no_text_is_a_failed_candidate():
    trial = tried(odd_backend(describe=lambda self: None))
    assert trial.verdict is Verdict.build_failed
    assert "describe() returned NoneType" in trial.reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "float7"),
        ("precision", None),
        ("precision", ["float32"]),
        ("ranges", "x"),
        ("ranges", {"batch0": (0, 10**9)}),
        ("ranges", {"batch0": (4, 1)}),
        ("ranges", {"batch0": 2}),
        ("ranges", {"nope": (1, 2)}),
        ("notes", 5),
        ("notes", (5,)),
        ("notes", "one text"),
        ("reentrant", "yes"),
        ("live_weights", None),
    ],
)
def test_what_an_engine_says_of_itself_is_looked_at_once_it_is_made(name, value):
    backend = odd_engine(**{name: value})
    trial = tried(backend)
    assert trial.verdict is Verdict.build_failed
    assert name in trial.reason
    assert backend.open_engines == 0


def test_a_fact_of_an_engine_that_raises_is_a_failed_candidate():
    def build(self, job):
        engine = FunctionBackend.build(self, job)
        odd = property(raising(RuntimeError("no notes")), lambda engine, value: None)
        engine.__class__ = type("OddEngine", (type(engine),), {"notes": odd})
        return engine

    trial = tried(odd_backend(build=build))
    assert trial.verdict is Verdict.build_failed
    assert "no notes" in trial.reason


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(3)])
def test_an_engine_that_cannot_be_closed_is_let_go_of(error, caplog):
    def build(self, job):
        engine = FunctionBackend.build(self, job)
        engine.run = lambda x: x * 3
        engine.close = raising(error)
        return engine

    assert tried(odd_backend(build=build)).verdict is Verdict.wrong
    assert "cannot be closed" in caplog.text


def test_ctrl_c_is_the_users():
    with fake_bench() as bench, pytest.raises(KeyboardInterrupt):
        bench.try_(FunctionBackend(raising(KeyboardInterrupt())))


def test_a_candidate_for_which_no_time_is_left_is_never_begun():
    backend = timed_backend("late", 0.5)
    with fake_bench(rules=Rules(time_limit=1e-6)) as bench:  # over when the batch size is known
        trial = bench.try_(backend)
    assert trial.verdict is Verdict.skipped
    assert "time limit" in trial.reason
    assert backend.builds == 0
