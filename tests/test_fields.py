"""Readers of JSON documents name what is wrong, and raise nothing else."""

from __future__ import annotations

import contextlib
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import DocumentError
from aitune.torch.fields import parse

DOCUMENT = {
    "name": "x",
    "size": 3,
    "ratio": 0.5,
    "flag": True,
    "inner": {"items": [{"path": "a"}]},
    "words": {"a": "b"},
}


@pytest.fixture
def fields():
    return parse(json.dumps(DOCUMENT), "file.json")


def test_fields_of_the_right_kind_are_returned(fields):
    assert fields.text("name") == "x"
    assert fields.integer("size") == 3
    assert fields.number("ratio") == 0.5
    assert fields.number("size") == 3.0
    assert fields.boolean("flag") is True
    assert fields.words("words") == {"a": "b"}
    assert [item.text("path") for item in fields.object("inner").objects("items")] == ["a"]
    assert fields.optional("nothing", fields.text) is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.text("size"), "file.json: size must be a string, not 3"),
        (lambda f: f.text("gone"), "file.json: gone is missing"),
        (lambda f: f.integer("ratio"), "file.json: ratio must be a whole number from 0"),
        (lambda f: f.integer("flag"), "file.json: flag must be a whole number from 0"),
        (lambda f: f.integer("size", 4), "file.json: size must be a whole number from 4"),
        (lambda f: f.number("name"), "file.json: name must be a number, not 'x'"),
        (lambda f: f.boolean("size"), "file.json: size must be true or false"),
        (lambda f: f.word("name", ["y", "z"]), "file.json: name must be one of y, z, not 'x'"),
        (lambda f: f.object("inner").objects("items")[0].text("size"), r"file.json: inner.items\[0\].size is missing"),
        (lambda f: f.objects("words"), "file.json: words must be a list, not an object"),
        (lambda f: f.object("inner").list("items", 0), "inner.items must have at most 0 entries, not 1"),
        (lambda f: f.text("name", longest=0), "name must have at most 0 characters"),
    ],
)
def test_what_is_wrong_is_named(fields, read, message):
    with pytest.raises(DocumentError, match=message) as raised:
        read(fields)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}', "[" * 100_000, b"\xff",
     '{"a": ' + "9" * 10_000 + "}", '{"a": ' + '{"a": ' * 50_000],
)  # fmt: skip
def test_what_is_no_document_is_refused(text):
    with pytest.raises(DocumentError):
        parse(text, "file.json")


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_nothing_else_is_raised_for_any_bytes(data):
    with contextlib.suppress(DocumentError):
        parse(data, "file.json")


@pytest.mark.parametrize("text", [r'{"a": "\ud800"}', r'{"\udfff": 1}', r'{"a": ["\ud83d", "\ude00"]}'])
def test_half_of_a_character_is_no_text(text):
    with pytest.raises(DocumentError, match="not readable as JSON"):
        parse(text, "file")
    with pytest.raises(DocumentError, match="not readable as JSON"):
        parse(text.encode(), "file")


def test_a_character_in_two_halves_is_text():
    assert parse(r'{"a": "\ud83d\ude00"}', "file").text("a") == "😀"
