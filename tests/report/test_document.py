"""A result survives its JSON form, whatever is in it."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.report import EndToEnd, GraphResult, ModuleResult, TuneResult
from aitune.torch.report.document import SCHEMA_VERSION
from aitune.torch.trial import PRECISIONS, Trial, Verdict

words = st.text(max_size=12)
tuples = st.lists(words, max_size=3).map(tuple)
numbers = st.none() | st.floats()
trials = st.builds(
    Trial, backend=words, verdict=st.sampled_from(Verdict), reason=words,
    precision=st.none() | st.sampled_from(PRECISIONS), error=numbers, error_bound=numbers,
    speedup=numbers, speedup_low=numbers, speedup_high=numbers, latency_ms=numbers, throughput=numbers,
    batch_size=st.none() | st.integers(1, 9), build_seconds=numbers, memory_bytes=st.none() | st.integers(),
    log_path=st.none() | words, evidence=tuples,
)  # fmt: skip
graphs = st.builds(GraphResult, words, tuples, tuples, words, st.lists(trials, max_size=2).map(tuple), tuples)
modules = st.builds(
    ModuleResult,
    words,
    words,
    st.lists(graphs, max_size=2).map(tuple),
    st.none() | words,
    put_back=st.booleans(),
)
ends = st.none() | st.builds(EndToEnd, *[st.floats()] * 5, tuples, words)
results = st.builds(
    TuneResult, st.dictionaries(words, modules, max_size=3), ends, st.floats(),
    st.dictionaries(words, words, max_size=3), tuples, st.booleans(), st.booleans(),
)  # fmt: skip


def no_constants(name):
    raise AssertionError(f"{name} is no JSON")


@given(results)
def test_every_result_comes_back_as_it_was(result):
    text = result.to_json()
    json.loads(text, parse_constant=no_constants)
    again = TuneResult.from_json(text)
    assert again.to_json() == text
    assert list(again.modules) == list(result.modules)
    assert repr(dataclasses.astuple(again)) == repr(dataclasses.astuple(result))  # repr: NaN is not equal to itself


def test_the_names_are_those_of_the_classes(result):
    document = json.loads(result.to_json())
    assert document["schema_version"] == SCHEMA_VERSION
    graph = document["modules"]["encoder"]["graphs"][0]
    assert set(graph) == {"name", "inputs", "outputs", "chosen", "trials", "notes", "recalled"}
    assert set(graph["trials"][0]) == {field.name for field in dataclasses.fields(Trial)}
    assert graph["trials"][0]["verdict"] == "unsupported"
    assert document["modules"]["encoder"]["state"] == "tuned"
    assert document["end_to_end"]["speedup"] == 1.28


def test_an_exception_comes_back_as_its_text():
    result = TuneResult({"m": ModuleResult("m", "Linear", error=ValueError("mine"))})
    again = TuneResult.from_json(result.to_json())
    assert again.modules["m"].error is None
    assert again.failures == {"m": "ValueError: mine"}


def test_numbers_of_numpy_are_numbers():
    trial = Trial(
        backend="A()",
        verdict=Verdict.accepted,
        speedup=np.float32(1.5),
        batch_size=np.int64(4),
        error=np.float64("inf"),
    )
    result = TuneResult({"m": ModuleResult("m", "Linear", (GraphResult("graph0", trials=(trial,)),))})
    again = TuneResult.from_json(result.to_json()).modules["m"].graphs[0].trials[0]
    assert (again.speedup, again.batch_size, again.error) == (1.5, 4, math.inf)


def test_names_that_a_later_version_added_are_left_out(result):
    document = json.loads(result.to_json())
    document["colour"] = "green"
    document["modules"]["encoder"]["graphs"][0]["trials"][0]["watts"] = 3
    assert TuneResult.from_json(json.dumps(document)) == result


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "modules": {"m": 3}}',
     '{"schema_version": 1, "modules": {"": {"name": "", "module_type": "", "graphs": [{"trials": [{}]}]}}}'],
)  # fmt: skip
def test_something_else_is_refused_with_a_reason(text):
    with pytest.raises(AITuneUserInputError, match="this is no"):
        TuneResult.from_json(text)


def test_a_newer_form_is_refused_and_says_so():
    with pytest.raises(AITuneUserInputError, match="newer aitune"):
        TuneResult.from_json('{"schema_version": 999, "modules": {}}')
