"""Strict JSON: what it takes it takes as the standard parser does, and what it refuses it refuses by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.exceptions import ParseError

from agent.common.strict_json import MAX_DEPTH
from mirbad.api.parsers import parse

pytestmark = pytest.mark.unit

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


@given(values, st.booleans())
def test_ordinary_values_are_read_as_they_are(value, escaped):
    assert parse(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_parse_error(data):
    try:
        value = parse(data)
    except ParseError:
        value = None
    assert parse(json.dumps(value).encode()) == value


def test_depth_is_counted_outside_of_strings():
    assert parse(json.dumps("[" * 500).encode()) == "[" * 500
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert parse(deepest)
    with pytest.raises(ParseError, match="nested"):
        parse(b"[" + deepest + b"]")


def test_a_bracket_after_an_escaped_quote_still_belongs_to_the_string():
    assert parse(b'{"a\\"[[[": "\\\\"}') == {'a"[[[': "\\"}
