"""Bodies that are not plain, bounded JSON: refused with a sentence, never with a crash."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.common.strict_json import MAX_DEPTH
from agent.errors import AgentError
from agent.server.body import parse_message, parse_object
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim
from agent.wire.instances import LaunchSpec, StopRequest
from tests.agent.core.conftest import FIRST_CLAIM, Agent, Master, launch_spec

pytestmark = pytest.mark.unit

BAD = {
    "nothing": b" ",
    "no object": b"[]",
    "a bare text": b'"x"',
    "null": b"null",
    "half": b'{"a":',
    "two objects": b"{}{}",
    "a trailing comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "a comment": b"{}/**/",
    "NaN": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "a float beyond range": b'{"a":1e999}',
    "an int beyond 64 bits": b'{"a":9223372036854775808}',
    "an int below 64 bits": b'{"a":-9223372036854775809}',
    "an int of a million digits": b'{"a":' + b"9" * 1_000_000 + b"}",
    "a leading zero": b'{"a":01}',
    "NUL in a value": b'{"a":"\\u0000"}',
    "NUL in a name": b'{"\\u0000":1}',
    "a raw control character": b'{"a":"\x01"}',
    "half a surrogate pair": b'{"a":"\\ud800"}',
    "the other half in a name": b'{"\\udfff":1}',
    "a name twice": b'{"a":1,"a":2}',
    "not UTF-8": b'{"a":"\xff"}',
    "an overlong NUL": b'{"a":"\xc0\x80"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "one level too deep": b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    "unclosed depth": b"[" * 900_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_not_plain_json_is_refused(data: bytes) -> None:
    with pytest.raises(AgentError) as caught:
        parse_object(data)
    assert caught.value.code is AgentCode.INVALID_REQUEST
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
async def test_the_agent_answers_400_to_each_and_lives(master: Master, agent: Agent, data: bytes) -> None:
    import io

    headers = {"Mirbad-Epoch": "1", "Mirbad-Instance": FIRST_CLAIM.instance_id, "Mirbad-Operation": "op-bad"}
    reply = await master.send("PUT", "/instances/a", io.BytesIO(data), **headers)  # type: ignore[arg-type]
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    assert (await master.get("/info")).status == 200
    assert agent.engines.launches == []


def test_ordinary_bodies_are_read_as_they_are() -> None:
    value = {"a": [1, -1, 2**63 - 1, 0.5, True, None, "ä 😀"], "b": {"c": {}}}
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


def test_as_many_levels_as_allowed_are_read() -> None:
    data = b'{"a":' + b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2) + b"}"
    assert list(parse_object(data)) == ["a"]


def _outcome(read: Callable[[], Any]) -> tuple[AgentError | None, Any]:
    try:
        return None, read()
    except AgentError as error:
        return error, None


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"\x80")
@example(b'{"a":1.0e+4000}')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    refused, value = _outcome(lambda: parse_object(data))
    if refused is not None:
        assert refused.code is AgentCode.INVALID_REQUEST
        return
    # What passes can be written, stored and sent again without a surprise.
    again = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(again) == value
    assert b"\x00" not in again


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([Claim, StopRequest, LaunchSpec]), st.dictionaries(st.text(max_size=12), JSON_VALUES), st.data())
def test_any_object_is_a_message_or_refused(model: Any, extra: dict[str, Any], data: st.DataObject) -> None:
    base = launch_spec() if model is LaunchSpec else {"epoch": 1, "instanceId": "12345678", "graceSeconds": 1}
    wrong = {data.draw(st.sampled_from(sorted(base))): data.draw(JSON_VALUES)}
    refused, message = _outcome(lambda: parse_message(model, {**base, **extra, **wrong}))
    if refused is None:
        assert isinstance(message, model)
        return
    assert refused.code is AgentCode.INVALID_REQUEST
    json.dumps(refused.to_body().to_wire())


@pytest.mark.parametrize("value", ["NaN", "Infinity", math.nan, math.inf, -1, 601, "x", None])
def test_a_grace_that_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(AgentError):
        parse_message(StopRequest, {"graceSeconds": value})
