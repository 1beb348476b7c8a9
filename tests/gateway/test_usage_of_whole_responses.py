"""Usage of a response that is one JSON document, small or large, and the reader that fits a response."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_app.gateway.usage import (
    MOST_TOKENS,
    TAIL_BYTES,
    WHOLE_PARSE_BYTES,
    EventReader,
    JsonReader,
    NullReader,
    TokenUsage,
    reader_for,
    usage_of,
)

pytestmark = pytest.mark.unit


def read_json(data, size=5000):
    reader = JsonReader()
    passed = b"".join(reader.feed(data[i : i + size]) for i in range(0, len(data), size)) + reader.finish()
    assert passed == data
    return reader.usage


def test_usage_of_a_small_answer_is_parsed():
    assert read_json(b'{"choices":[],"usage" : {"prompt_tokens":3,"x":{"y":{}},"completion_tokens":4}}') == TokenUsage(
        3, 4
    )
    assert read_json(b'{"usage":null}') is None
    assert read_json(b"not json") is None


def test_usage_of_a_large_answer_is_found_at_its_end():
    data = [{"embedding": [0.25] * 1000}] * 600
    text = json.dumps({"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3, "d": {"e": {}}}, "x": None})
    assert len(text) > 2 * WHOLE_PARSE_BYTES
    assert read_json(text.encode()) == TokenUsage(3, None)


def test_a_large_answer_that_only_talks_of_usage_reports_none():
    text = json.dumps({"content": "z" * 2 * WHOLE_PARSE_BYTES, "end": 'he said "usage": {"prompt_tokens": 9}'})
    assert read_json(text.encode()) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["usage", "response", "message", "prompt_tokens", "completion_tokens"]), x
            )
        ),
        max_leaves=8,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_answer_has_usage_or_none(answer):
    found = usage_of(answer)
    numbers = [] if found is None else [n for n in (found.prompt, found.completion) if n is not None]
    assert all(isinstance(number, int) and number >= 0 for number in numbers)


P, C = "prompt_tokens", "completion_tokens"


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {P: 0, C: 1}}, TokenUsage(0, 1)),
        ({"usage": {P: -1, C: 0}}, TokenUsage(None, 0)),
        ({"usage": {P: True, C: 1.5}}, None),
        ({"usage": {"input_tokens": 4}}, TokenUsage(4, None)),
        ({"usage": {"output_tokens": 4}}, TokenUsage(None, 4)),
        ({"usage": {P: 1, "input_tokens": 2, C: 3, "output_tokens": 4}}, TokenUsage(1, 3)),
        ({"usage": {P: None, "input_tokens": 2, C: 3}}, TokenUsage(None, 3)),
        ({"usage": {P: 1, C: None, "output_tokens": 4}}, TokenUsage(1, None)),
        ({"usage": {"input_tokens": 2, "cache_creation_input_tokens": 30}}, TokenUsage(32, None)),
        ({"usage": {"input_tokens": 2, "cache_read_input_tokens": 400, "output_tokens": 1}}, TokenUsage(402, 1)),
        (
            {"usage": {"input_tokens": 2, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 400}},
            TokenUsage(432, None),
        ),
        (
            {"usage": {"input_tokens": 2, "cache_creation_input_tokens": None, "cache_read_input_tokens": -1}},
            TokenUsage(2, None),
        ),
        ({"usage": {"input_tokens": None, "cache_read_input_tokens": 400, "output_tokens": 1}}, TokenUsage(None, 1)),
        ({"usage": {P: 2, "cache_read_input_tokens": 400}}, TokenUsage(2, None)),
        ({"usage": {P: MOST_TOKENS, C: MOST_TOKENS + 1}}, TokenUsage(MOST_TOKENS, None)),
        ({"usage": {}}, None),
        ({"usage": {}, "response": {"usage": {P: 1}}}, None),
        ({"usage": None, "response": {"usage": {P: 1}}}, TokenUsage(1, None)),
        ({"message": {"usage": {P: 1}}}, TokenUsage(1, None)),
        ({"response": {"usage": {P: 1}}, "message": {"usage": {P: 2}}}, TokenUsage(1, None)),
        ({"response": {"usage": None}, "message": {"usage": {P: 2}}}, TokenUsage(2, None)),
        ({"response": "text", "message": ["usage"]}, None),
        (["usage"], None),
        ("usage", None),
        (None, None),
    ],
)
def test_usage_is_found_where_each_api_puts_it(answer, usage):
    assert usage_of(answer) == usage


def test_a_response_up_to_the_limit_is_parsed_whole_and_a_longer_one_is_not():
    head = b'{"usage": {"prompt_tokens": 3}, "text": "'
    assert read_json(head + b"z" * (WHOLE_PARSE_BYTES - len(head) - 2) + b'"}') == TokenUsage(3, None)
    assert read_json(head + b"z" * (WHOLE_PARSE_BYTES - len(head) - 1) + b'"}') is None


@pytest.mark.parametrize("behind", [b'"text": "', b'"usage", "text": "'])
def test_usage_at_the_very_start_of_the_kept_end_is_found(behind):
    kept = b'"usage": {"prompt_tokens": 3}, ' + behind
    kept += b"z" * (TAIL_BYTES - len(kept) - 2) + b'"}'
    whole = b'{"a": "' + b"z" * WHOLE_PARSE_BYTES + b'", ' + kept
    assert read_json(whole, len(whole)) == TokenUsage(3, None)
    # Also when the word follows once more and is no member.
    assert read_json(whole.replace(b'zzzzzzzz"}', b'zz"usage"'), len(whole)) == TokenUsage(3, None)
    # One byte more behind it, and it is no longer kept.
    assert read_json(whole + b" ", len(whole) + 1) is None


def test_little_of_a_large_response_is_kept():
    reader = JsonReader()
    most = 0
    for _ in range(3000):
        reader.feed(b"z" * 1000)
        kept = sum(map(len, reader._parts))
        assert kept == reader._size
        most = max(most, kept) if reader._large else most
    assert 3 * TAIL_BYTES < most <= 4 * TAIL_BYTES


LARGE = b'{"a": "' + b"z" * WHOLE_PARSE_BYTES + b'", '


@pytest.mark.parametrize(
    ("end", "usage"),
    [
        (b'"usage":{"prompt_tokens":3}}', TokenUsage(3, None)),
        (b'"usage" \n :  {"prompt_tokens":3}}', TokenUsage(3, None)),
        (b'"usage": {"prompt_tokens":3}, "b": {"usage": "text"}}', TokenUsage(3, None)),
        (b'"usage": {"prompt_tokens":3}, "b": "usage"}', TokenUsage(3, None)),
        (b'"usage": {"prompt_tokens":3}, "usage": {"prompt_tokens":4}}', TokenUsage(4, None)),
        (b'"usage": {"prompt_tokens":3}, "usage": {"prompt_tokens"', TokenUsage(3, None)),
        (b'"usage": {"prompt_tokens":3}, "b": "\xff"}', TokenUsage(3, None)),
        (b'"usage": {"b": ' + b"[" * 5000 + b"]" * 5000 + b"}}", None),
        (b'"usage"', None),
        (b'"usage"="x"', None),
        (b'"usage": null}', None),
    ],
)
def test_in_a_large_response_the_last_usage_with_counts_is_taken(end, usage):
    assert read_json(LARGE + end) == usage


@pytest.mark.parametrize("size", [1, 7, 100_000, 10**7])
def test_usage_is_the_same_however_a_large_response_is_split(size):
    data = LARGE + b'"usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    reader = JsonReader()
    reader.feed(data[:-200])
    for start in range(len(data) - 200, len(data), size):
        reader.feed(data[start : start + size])
    assert reader.finish() == b""
    assert reader.usage == TokenUsage(3, 4)
    assert not reader.failed


@pytest.mark.parametrize(
    ("status", "kind", "compressed", "expected"),
    [
        (200, b"text/event-stream", False, EventReader),
        (200, b"Text/Event-Stream; charset=utf-8", False, EventReader),
        (200, b"application/json", False, JsonReader),
        (299, b"application/vnd.api+json; charset=utf-8", False, JsonReader),
        (200, b"text/event-strea", False, NullReader),
        (200, b"audio/mpeg", False, NullReader),
        (200, b"", False, NullReader),
        (200, b"application/json", True, NullReader),
        (200, b"text/event-stream", True, NullReader),
        (199, b"application/json", False, NullReader),
        (300, b"application/json", False, NullReader),
        (500, b"text/event-stream", False, NullReader),
    ],
)
def test_the_reader_fits_the_response(status, kind, compressed, expected):
    assert type(reader_for(status, kind, compressed=compressed, withhold=False)) is expected


def test_a_response_without_usage_passes_unread():
    reader = NullReader()
    assert reader.feed(b'{"usage": {"prompt_tokens": 3}}') == b'{"usage": {"prompt_tokens": 3}}'
    assert reader.finish() == b""
    assert (reader.usage, reader.failed) == (None, False)
