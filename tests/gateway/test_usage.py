"""Usage is read from a copy; only the usage event that downstream did not ask for is withheld."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_app.gateway.usage import (
    HOLD_BYTES,
    EventReader,
    TokenUsage,
    reader_for,
)

pytestmark = pytest.mark.unit


def event(value, end="\n\n", space=" "):
    return f"data:{space}{value if isinstance(value, str) else json.dumps(value)}{end}".encode()


DELTA = event({"choices": [{"delta": {"content": "café"}}]})
FINISH = event({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
ONLY = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
DONE = event("[DONE]")
P, C = "prompt_tokens", "completion_tokens"


def run(stream, where, *, withhold):
    points = sorted({cut % (len(stream) + 1) for cut in where})
    reader = EventReader(withhold=withhold)
    pieces = [stream[a:b] for a, b in zip([0, *points], [*points, len(stream)], strict=True) if a != b]
    passed = b"".join(reader.feed(piece) for piece in pieces) + reader.finish()
    return passed, reader.usage


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (DELTA + ONLY + DONE, TokenUsage(5, 7)),
        (DELTA + FINISH + DONE, TokenUsage(5, 7)),
        (DELTA + FINISH + ONLY + DONE, TokenUsage(5, 7)),
        (DELTA + event({"choices": [{}], "usage": None}) + DONE, None),
        (event({"choices": [], "usage": None}) + DONE, None),
        (event('{"choices":[],"usage" : {"prompt_tokens":1,"completion_tokens":2}}', space=""), TokenUsage(1, 2)),
        (event({"choices": [], "usage": {"prompt_tokens": 1, "details": {"cached": {"a": 0}}}}), TokenUsage(1, None)),
        (event({"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": True}}), None),
        (event('{"choices":[{"delta":{"content":"say \\"usage\\": {}"}}]}'), None),
        (event('not json with "usage"'), None),
        (
            b"event: message_start\n"
            + event({"message": {"usage": {"input_tokens": 4, "output_tokens": 1}}})
            + b"event: message_delta\n"
            + event({"usage": {"output_tokens": 9}}),
            TokenUsage(4, 9),
        ),
        (event({"response": {"usage": {"input_tokens": 4, "output_tokens": 6}}}), TokenUsage(4, 6)),
        (b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n', TokenUsage(3, 4)),
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
    assert run(before + only + after, where, withhold=True) == (before + after, TokenUsage(5, 7))
    assert run(before + only, where, withhold=True) == (before, TokenUsage(5, 7))


def test_a_usage_event_without_its_empty_line_is_withheld_at_the_end():
    assert run(DELTA + ONLY.rstrip(b"\n"), [], withhold=True) == (DELTA, TokenUsage(5, 7))


def test_an_unfinished_event_passes_at_the_end():
    assert run(DELTA + b'data: {"choi', [40], withhold=True)[0] == DELTA + b'data: {"choi'


@given(where=st.lists(st.integers(0, 10**6), max_size=20))
@settings(max_examples=50, deadline=None)
def test_an_event_without_end_is_not_held_for_ever(where):
    long = event({"choices": [{"delta": {"content": "z" * 3 * HOLD_BYTES}}]})
    assert run(long + ONLY + DONE, where, withhold=True) == (long + DONE, TokenUsage(5, 7))


def test_little_of_an_event_without_end_is_held():
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


def events(*pieces):
    """The bytes that a reader without `withhold` passes, its usage, and whether it saw an error."""
    reader = EventReader(withhold=False)
    passed = b"".join(reader.feed(piece) for piece in pieces) + reader.finish()
    return passed, reader.usage, reader.failed


def test_a_later_report_counts_and_completes_an_earlier_one():
    first = event({"usage": {P: 1, C: 2}})
    assert events(first + event({"usage": {P: 3}}))[1] == TokenUsage(3, 2)
    assert events(first + event({"usage": {C: 4}}))[1] == TokenUsage(1, 4)
    assert events(first + event({"usage": {}}))[1] == TokenUsage(1, 2)


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        ('data: {"usage": {"prompt_tokens": 3}, "text": "half \\ud83d"}', TokenUsage(3, None)),
        ('data: {"usage": {"prompt_tokens": 3}, "deep": ' + "[" * 100_000 + "]" * 100_000 + "}", None),
        ('data: {"usage": {"prompt_tokens": 1\ndata: 2}}', None),  # lines of data are joined by a line break
        ('data: {"usage": \ndata: {"prompt_tokens": 12}}', TokenUsage(12, None)),
        ('data: {"usage":\nid: 7\n: {"prompt_tokens": 9}\ndata: {"prompt_tokens": 12}}', TokenUsage(12, None)),
        ('xdata: {"usage": {"prompt_tokens": 3}}', None),
    ],
    ids=["lone surrogate", "deep", "split number", "split event", "other fields", "no data"],
)
def test_data_of_an_event_is_read_as_the_specification_says(text, usage):
    assert events(text.encode() + b"\n\n")[1] == usage


def test_data_that_is_not_utf_8_has_no_usage():
    assert events(b'data: {"usage": {"prompt_tokens": 3}, "x": "\xff"}\n\n')[1] is None


ERROR = event({"error": {"message": "EngineCore died"}})


@pytest.mark.parametrize(
    ("stream", "failed"),
    [
        (DELTA + ERROR + DONE, True),
        (ERROR + event({"error": None}), True),
        (ERROR + event({"error": None, "usage": {P: 1}}), True),
        (event({"error": None}), False),
        (event({"choices": [{"delta": {"content": 'an "error": {}'}}]}), False),
        (event(["error"]), False),
        (event('not json with "error"'), False),
        (DELTA + ONLY, False),
    ],
)
def test_an_error_of_the_engine_inside_a_stream_is_noticed(stream, failed):
    assert events(stream)[::2] == (stream, failed)
    assert events(stream[:20], stream[20:])[::2] == (stream, failed)


def test_an_error_event_with_usage_is_both():
    stream = event({"choices": [], "usage": {P: 1, C: 2}, "error": {"message": "x"}})
    assert events(stream) == (stream, TokenUsage(1, 2), True)


@pytest.mark.parametrize("member", [{}, {"choices": [{}]}, {"choices": None}, {"choices": ""}])
def test_an_event_with_usage_and_anything_else_is_not_withheld(member):
    stream = DELTA + event({"usage": {P: 1, C: 2}, **member}) + DONE
    assert run(stream, [], withhold=True) == (stream, TokenUsage(1, 2))


def test_an_empty_event_before_the_usage_event_passes():
    assert run(b"\n\n" + ONLY, [], withhold=True) == (b"\n\n", TokenUsage(5, 7))


def test_a_usage_event_that_follows_a_long_one_in_the_same_chunk_is_withheld():
    long = b"data: " + b"x" * (2 * HOLD_BYTES) + b"\n\n"
    reader = EventReader(withhold=True)
    assert reader.feed(long[:-1]) == long[:-4]
    assert reader.feed(long[-1:] + ONLY + DELTA) == long[-4:] + DELTA
    assert reader.usage == TokenUsage(5, 7)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_the_end_of_a_long_event_is_found_however_it_is_split(end):
    for cut in range(len(end)):
        reader = EventReader(withhold=True)
        passed = reader.feed(b"x" * (HOLD_BYTES + 1) + end[:cut]) + reader.feed(end[cut:] + ONLY)
        assert passed + reader.finish() == b"x" * (HOLD_BYTES + 1) + end
        assert reader.usage == TokenUsage(5, 7)


def test_an_unfinished_event_is_held_up_to_a_limit_and_then_all_but_three_bytes_pass():
    reader = EventReader(withhold=True)
    assert reader.feed(b"x" * HOLD_BYTES) == b""
    assert reader.feed(b"yz") == b"x" * (HOLD_BYTES - 1)
    assert reader.feed(b"0123456789") == b"xyz0123456"
    assert reader.finish() == b"789"
    assert reader.finish() == b""


def test_without_withholding_every_chunk_passes_at_once():
    reader = EventReader(withhold=False)
    for chunk in (ONLY[:10], ONLY[10:], b"data: unfin"):
        assert reader.feed(chunk) == chunk
    assert reader.finish() == b""


def test_events_are_counted_as_they_pass():
    reader = EventReader(withhold=False)
    counts = []
    for chunk in (DELTA, DELTA * 3, DELTA[:-1], DELTA[:3], ONLY + DONE):
        reader.feed(chunk)
        counts.append(reader.events)
    assert counts == [1, 4, 4, 4, 6]
    assert EventReader(withhold=True).events == 0


class Watched(EventReader):
    """Counts the chunks that were searched for events."""

    searched = 0

    def _read(self, data):
        self.searched += 1
        return super()._read(data)


@pytest.mark.parametrize("withhold", [False, True])
def test_chunks_of_whole_events_without_usage_or_error_are_not_searched(withhold):
    reader = Watched(withhold=withhold)
    for _ in range(5):
        assert reader.feed(DELTA + DONE) == DELTA + DONE
    assert reader.searched == 0
    for chunk in (ONLY, ERROR, DELTA[:-1], b"\n"):
        reader.feed(chunk)
    assert reader.searched == 4
    reader.feed(DELTA)
    assert reader.searched == 4


def test_what_follows_a_long_unfinished_event_is_searched():
    reader = Watched(withhold=True)
    reader.feed(b"x" * 2 * HOLD_BYTES)
    reader.feed(b"\n\n")
    assert reader.searched == 2
    assert reader.feed(DELTA) == DELTA
    assert reader.searched == 2


@pytest.mark.parametrize("withhold", [False, True])
def test_the_reader_of_events_withholds_if_asked(withhold):
    reader = reader_for(200, b"text/event-stream", compressed=False, withhold=withhold)
    assert reader.feed(ONLY) == (b"" if withhold else ONLY)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("together", [1, 3])
def test_events_are_counted_whatever_ends_their_lines(end, together):
    reader = EventReader(withhold=False)
    for _ in range(4):
        reader.feed(event({"choices": [{"delta": {"content": "a"}}]}, end) * together)
    assert reader.events == 4 * together
