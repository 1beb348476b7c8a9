"""Usage is read on the side; only the event that the client did not ask for is kept from it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_app.gateway.usage import HOLD_BYTES, WHOLE_PARSE_BYTES, EventReader, JsonReader, Usage, usage_of

pytestmark = pytest.mark.unit


def event(value, end="\n\n", space=" "):
    return f"data:{space}{value if isinstance(value, str) else json.dumps(value)}{end}".encode()


DELTA = event({"choices": [{"delta": {"content": "café"}}]})
FINISH = event({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
ONLY = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
DONE = event("[DONE]")


def run(stream, where, *, withhold):
    points = sorted({cut % (len(stream) + 1) for cut in where})
    reader = EventReader(withhold=withhold)
    pieces = [stream[a:b] for a, b in zip([0, *points], [*points, len(stream)], strict=True) if a != b]
    passed = b"".join(reader.feed(piece) for piece in pieces) + reader.finish()
    return passed, reader.usage


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (DELTA + ONLY + DONE, Usage(5, 7)),
        (DELTA + FINISH + DONE, Usage(5, 7)),
        (DELTA + FINISH + ONLY + DONE, Usage(5, 7)),
        (DELTA + event({"choices": [{}], "usage": None}) + DONE, None),
        (event({"choices": [], "usage": None}) + DONE, None),
        (event('{"choices":[],"usage" : {"prompt_tokens":1,"completion_tokens":2}}', space=""), Usage(1, 2)),
        (event({"choices": [], "usage": {"prompt_tokens": 1, "details": {"cached": {"a": 0}}}}), Usage(1, None)),
        (event({"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": True}}), None),
        (event('{"choices":[{"delta":{"content":"say \\"usage\\": {}"}}]}'), None),
        (event('not json with "usage"'), None),
        (
            b"event: message_start\n"
            + event({"message": {"usage": {"input_tokens": 4, "output_tokens": 1}}})
            + b"event: message_delta\n"
            + event({"usage": {"output_tokens": 9}}),
            Usage(4, 9),
        ),
        (event({"response": {"usage": {"input_tokens": 4, "output_tokens": 6}}}), Usage(4, 6)),
        (b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n', Usage(3, 4)),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@given(where=st.lists(st.integers(0, 2000), max_size=12))
@settings(max_examples=30, deadline=None)
def test_usage_is_the_last_that_was_reported_however_the_bytes_are_split(stream, usage, end, where):
    stream = stream.replace(b"\n", end)
    passed, found = run(stream, where, withhold=False)
    assert passed == stream
    assert found == usage


@given(where=st.lists(st.integers(0, 2000), max_size=20), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
@settings(max_examples=300, deadline=None)
def test_only_the_usage_event_is_withheld(where, end):
    before, after = DELTA * 2 + FINISH, DONE + b": a comment\n\n"
    before, only, after = (part.replace(b"\n", end) for part in (before, ONLY, after))
    assert run(before + only + after, where, withhold=True) == (before + after, Usage(5, 7))
    assert run(before + only, where, withhold=True) == (before, Usage(5, 7))


def test_a_usage_event_without_its_empty_line_is_withheld_at_the_end():
    assert run(DELTA + ONLY.rstrip(b"\n"), [], withhold=True) == (DELTA, Usage(5, 7))


def test_an_unfinished_event_passes_at_the_end():
    assert run(DELTA + b'data: {"choi', [40], withhold=True)[0] == DELTA + b'data: {"choi'


@given(where=st.lists(st.integers(0, 10**6), max_size=20))
@settings(max_examples=50, deadline=None)
def test_an_event_without_end_is_not_held_for_ever(where):
    long = event({"choices": [{"delta": {"content": "z" * 3 * HOLD_BYTES}}]})
    assert run(long + ONLY + DONE, where, withhold=True) == (long + DONE, Usage(5, 7))
    reader = EventReader(withhold=True)
    held = max(fed - len(out) for fed, out in _amounts(reader, b"data: " + b"x" * 1000, 1000))
    assert held <= HOLD_BYTES + 2000


def _amounts(reader, piece, times):
    fed, out = 0, b""
    for _ in range(times):
        fed += len(piece)
        out += reader.feed(piece)
        yield fed, out


@given(st.lists(st.binary(max_size=30) | st.sampled_from([DELTA, ONLY[:20], DONE, b"\n\n", b"\r\r"]), max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_is_no_usage_event_is_never_changed(pieces):
    stream = b"".join(pieces)
    reader = EventReader(withhold=True)
    assert b"".join(reader.feed(p) for p in pieces if p) + reader.finish() == stream


def read_json(data, size=5000):
    reader = JsonReader()
    passed = b"".join(reader.feed(data[i : i + size]) for i in range(0, len(data), size)) + reader.finish()
    assert passed == data
    return reader.usage


def test_usage_of_a_small_answer_is_parsed():
    assert read_json(b'{"choices":[],"usage" : {"prompt_tokens":3,"x":{"y":{}},"completion_tokens":4}}') == Usage(3, 4)
    assert read_json(b'{"usage":null}') is None
    assert read_json(b"not json") is None


def test_usage_of_a_large_answer_is_found_at_its_end():
    data = [{"embedding": [0.25] * 1000}] * 600
    text = json.dumps({"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3, "d": {"e": {}}}, "x": None})
    assert len(text) > 2 * WHOLE_PARSE_BYTES
    assert read_json(text.encode()) == Usage(3, None)


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
    assert found is None or (found.prompt or 0) >= 0 <= (found.completion or 0)
