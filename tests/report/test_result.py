"""A result is plain, frozen data that says what failed."""

import dataclasses
import pickle
import subprocess
import sys

import pytest

from aitune.exceptions import TuneFailedError
from aitune.torch.report import ORIGINAL, GraphResult, ModuleResult, TuneResult
from aitune.torch.trial import Trial, Verdict


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no")


class ForgetsHowItWasMade(Exception):
    """Pickles, and cannot be read again."""

    def __init__(self, first, second):
        super().__init__(first)


def failed(*errors):
    return TuneResult(
        {f"m{i}": ModuleResult(f"m{i}", "Linear", failure=f"why {i}", error=e) for i, e in enumerate(errors)}
    )


def test_the_chosen_trial_is_the_accepted_one_of_the_chosen_backend():
    rejected = Trial(backend="A()", verdict=Verdict.slower)
    accepted = Trial(backend="A()", verdict=Verdict.accepted)
    assert GraphResult("graph0", chosen="A()", trials=(rejected, accepted)).chosen_trial is accepted
    assert GraphResult("graph0", chosen=ORIGINAL, trials=(rejected, accepted)).chosen_trial is None


def test_the_state_of_a_module_says_what_became_of_it():
    tuned = GraphResult("graph0", chosen="A()")
    alone = GraphResult("graph1")
    assert ModuleResult("m", "Linear", (alone, tuned)).state == "tuned"
    assert ModuleResult("m", "Linear", (alone,)).state == "original"
    assert ModuleResult("m", "Linear", (tuned,), put_back=True).state == "put_back"
    assert ModuleResult("m", "Linear", (tuned,), failure="why").state == "failed"
    assert ModuleResult("m", "Linear", error=ValueError("x")).failure_text == "ValueError: x"


def test_a_result_cannot_be_changed(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.seconds = 1.0
    with pytest.raises(TypeError):
        result.modules["encoder"] = None


def test_the_modules_are_found_by_name_in_the_order_of_the_tune(result):
    assert list(result.modules) == ["encoder", "head"]
    assert result.modules["encoder"].graphs[0].chosen == "ONNXRuntimeBackend()"


def test_the_only_exception_is_raised_as_it_is():
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        failed(error).raise_for_failures()
    assert caught.value is error


def test_several_failures_are_raised_together_with_the_first_exception_as_the_cause():
    first, second = ValueError("first"), KeyError("second")
    with pytest.raises(TuneFailedError, match="m0: why 0; m1: why 1; m2: why 2") as caught:
        failed(None, first, second).raise_for_failures()
    assert caught.value.__cause__ is first
    assert caught.value.failures == {"m0": "why 0", "m1": "why 1", "m2": "why 2"}


def test_a_failure_without_an_exception_is_raised_too():
    with pytest.raises(TuneFailedError, match="why 0"):
        failed(None).raise_for_failures()


def test_nothing_is_raised_where_nothing_failed():
    TuneResult().raise_for_failures()
    TuneResult({"m": ModuleResult("m", "Linear", put_back=True)}).raise_for_failures()


def test_a_result_pickles_with_its_exceptions(result):
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert hash(again) == hash(result)
    loaded = pickle.loads(pickle.dumps(failed(ValueError("mine"))))
    with pytest.raises(ValueError, match="mine"):
        loaded.raise_for_failures()


@pytest.mark.parametrize("error", [Unpicklable("u"), ForgetsHowItWasMade("a", "b")])
def test_an_exception_that_does_not_survive_pickling_leaves_its_text(error):
    loaded = pickle.loads(pickle.dumps(TuneResult({"m": ModuleResult("m", "Linear", error=error)})))
    assert loaded.modules["m"].error is None
    with pytest.raises(TuneFailedError, match=f"{type(error).__name__}: {error}"):
        loaded.raise_for_failures()


def test_the_short_form_says_how_many_were_tuned(result):
    assert repr(result) == "<TuneResult: 1 of 2 modules tuned; print it for the table>"


def test_importing_the_room_imports_nothing_that_draws():
    code = (
        "import sys, pkgutil, importlib, aitune.torch.report as room\n"
        "for part in pkgutil.iter_modules(room.__path__):\n"
        "    importlib.import_module(f'{room.__name__}.{part.name}')\n"
        "print([name for name in ('rich', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
