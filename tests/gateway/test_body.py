"""Reading `model` and `stream` of a body, small or of megabytes."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_app.gateway import body as bodies
from models_app.gateway.errors import GatewayError

pytestmark = pytest.mark.unit

LARGE = "x" * (bodies.WHOLE_PARSE_BYTES + 1)


def refused(body):
    with pytest.raises(GatewayError) as caught:
        bodies.peek(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m"}', ("m", False, False)),
        (b' {"model" : "a/b", "stream": true} ', ("a/b", True, False)),
        (b'{"messages":[{"model":"no","stream":true}],"model":"m","stream":false}', ("m", False, False)),
        (b'{"model":"m","stream":null,"stream_options":null}', ("m", False, True)),
        (b'{"model":"m","stream":true,"stream_options":{"include_usage":false}}', ("m", True, True)),
        (b'{"mod\\u0065l":"m"}', ("m", False, False)),
        (b'{"model":"first","model":"last"}', ("last", False, False)),
        ('{"model":"é"}'.encode(), ("é", False, False)),
        (b'{"model":"m","n":1e5,"x":[[],{}]}', ("m", False, False)),
    ],
)
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_members_are_found_at_the_top_level_only(body, expected, large):
    if large:
        body = body.replace(b"{", b'{"filler":"' + LARGE.encode() + b'",', 1)
    found = bodies.peek(body)
    assert (found.model, found.stream, found.options_at is not None) == expected


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"nonsense", "invalid_json", None),
        (b'{"model":"m"', "invalid_json", None),
        (b'{"model":"m"} x', "invalid_json", None),
        (b"{'model':'m'}", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b'"model"', "invalid_json", None),
        (b'{"model":"m","x":NaN}', "invalid_json", None),
        (b'{"model":"m","x":' + b"9" * 5000 + b"}", "invalid_json", None),
        (b'{"model":"m","x":' + b"[" * 100_000, "invalid_json", None),
        (b'{"model":"\xff"}', "invalid_json", None),
        ('{"model":"m"}'.encode("utf-16"), "invalid_json", None),
        (b'\xef\xbb\xbf{"model":"m"}', "invalid_json", None),
        (b"{}", "model_required", "model"),
        (b'{"model":null}', "model_required", "model"),
        (b'{"model":7}', "invalid_request", "model"),
        (b'{"model":""}', "invalid_request", "model"),
        (b'{"model":["m"]}', "invalid_request", "model"),
        (b'{"model":"m","stream":"yes"}', "invalid_request", "stream"),
        (b'{"model":"m","stream":1}', "invalid_request", "stream"),
        (b'{"model":"m","stream_options":[]}', "invalid_request", "stream_options"),
    ],
)
def test_what_cannot_be_used_is_400_and_says_where(body, code, param):
    found = refused(body)
    assert (found.status, found.code, found.param) == (400, code, param)


@pytest.mark.parametrize(
    "body",
    [
        '{"a":"' + LARGE + '"',
        '{"a":"' + LARGE + '","model"',
        '{"a":"' + LARGE + '","model":}',
        '{"a":"' + LARGE + '" "model":"m"}',
        '{"a":"' + LARGE + '","model":"m"} x',
        '{"a":"' + LARGE + '\\","model":"m"}',
        '{"a":["' + LARGE + '","model":"m"}',
        "[" * bodies.WHOLE_PARSE_BYTES * 2,
        '{"a":' * bodies.WHOLE_PARSE_BYTES,
        "\\" * bodies.WHOLE_PARSE_BYTES * 2,
        '{"' + "\\" * bodies.WHOLE_PARSE_BYTES * 2,
        " " * bodies.WHOLE_PARSE_BYTES * 2,
    ],
)
def test_a_large_body_that_the_walk_cannot_follow_is_400(body):
    assert refused(body.encode()).status == 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text() | st.sampled_from(["model", "stream"]), values, max_size=6), st.sampled_from([None, 2])
)
@settings(max_examples=300, deadline=None)
def test_the_walk_sees_what_a_whole_parse_sees(members, indent):
    text = json.dumps(members, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    wanted = {name: value for name, value in members.items() if name in ("model", "stream", "stream_options")}
    assert bodies.members.run(bodies._walk(text))[0] == wanted


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_noise_is_refused_by_name_only(noise):
    assert refused(noise).status == 400
    with suppress(GatewayError):
        assert isinstance(bodies.members.run(bodies._walk(noise)), tuple)


def test_a_megabyte_is_walked_without_being_parsed():
    body = json.dumps({"messages": [{"role": "user", "content": "y" * 4_000_000}], "model": "m"}).encode()
    began = time.process_time()
    for _ in range(5):
        assert bodies.peek(body).model == "m"
    walked = time.process_time() - began
    began = time.process_time()
    for _ in range(5):
        json.loads(body)
    assert walked < time.process_time() - began


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'{"model":"m"}', b'\n{\n "model":"m"}', b'{"a":{"b":[]}}'])
def test_asking_for_usage_adds_one_member_and_changes_no_other(body):
    asked = json.loads(bodies.with_usage(bodies.BodyPeek("m", stream=True, body=body)))
    assert asked.pop("stream_options") == {"include_usage": True}
    assert asked == json.loads(body)


@pytest.mark.parametrize("filler", [0, bodies.WHOLE_PARSE_BYTES])
@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": 1, "x": [1, {"y": "}"}]}])
def test_asking_for_usage_replaces_only_the_options_that_do_not(options, kind, filler):
    sent = {"model": "m", "f": "x" * filler, "stream": True, "stream_options": options, "messages": [{"a": "b"}]}
    found = bodies.peek(kind(json.dumps(sent).encode()))
    assert not found.asks_usage
    assert json.loads(bodies.with_usage(found)) == {
        **sent, "stream_options": {**(options or {}), "include_usage": True}
    }  # fmt: skip
    sent["stream_options"] = {"include_usage": True}
    assert bodies.peek(json.dumps(sent).encode()).asks_usage
