"""One strict reader in three places: `/api`, enrollment and agent refuse the same bodies."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.exceptions import ParseError

from agent.common import strict_json
from agent.common.strict_json import MAX_DEPTH, MAX_INT, MIN_INT, BadJson
from agent.errors import AgentError
from agent.server.body import parse_object
from mirbad.api.parsers import parse as parse_api
from mirbad.kernel.errors import InvalidRequest
from nodes.enrollment.body import read_enroll_request
from tests.agent.core.test_body import BAD

pytestmark = pytest.mark.unit

READERS: dict[str, tuple[Callable[[bytes], Any], type[Exception]]] = {
    "shared": (strict_json.parse_object, BadJson),
    "api": (parse_api, ParseError),
    "enrollment": (read_enroll_request, InvalidRequest),
    "agent": (parse_object, AgentError),
}
NOT_AN_OBJECT = {"no object", "a bare text", "null"}  # /api takes them: a value there may be an array or a scalar


@pytest.mark.parametrize(
    ("reader", "kind"),
    [(reader, kind) for kind in BAD for reader in READERS if reader != "api" or kind not in NOT_AN_OBJECT],
)
def test_what_one_refuses_all_refuse(reader: str, kind: str) -> None:
    read, refusal = READERS[reader]
    with pytest.raises(refusal) as caught:
        read(BAD[kind])
    assert str(caught.value).startswith("The body ")


@pytest.mark.parametrize("number", [0, MIN_INT, MAX_INT, 10**17, 10**18, 999_999_999_999_999_999])
def test_numbers_of_64_bits_are_read_by_all(number: int) -> None:
    data = json.dumps({"a": number}).encode()
    assert strict_json.parse(data) == parse_api(data) == parse_object(data) == {"a": number}


def test_the_deepest_body_is_read_by_all() -> None:
    data = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert strict_json.parse(data) == parse_api(data) == parse_object(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_bad_json(data: bytes) -> None:
    try:
        value = strict_json.parse(data)
    except BadJson:
        return
    assert json.loads(json.dumps(value, allow_nan=False)) == value


@pytest.mark.parametrize(
    "body",
    [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b"[" + b",".join([b"[]"] * 100) + b"]",
        b"[" + b",".join([b"{}"] * 100) + b"]",
        b"[" + b",".join([b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)] * 3) + b"]",
        b"[" + b"[[]]," * 3 + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"]",
        b'["' + b"[" * 100 + b'"]',
        b'["\\"' + b"[" * 100 + b'"]',
    ],
)
def test_levels_are_counted_and_not_brackets(body: bytes) -> None:
    assert strict_json.parse(body) is not None


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" + b",".join([b"[]"] * 9 + [b"[" * MAX_DEPTH + b"]" * MAX_DEPTH]) + b"]",
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b"[" + b"{}," * 9 + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]",
        b"[[[]," + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"]]",
    ],
)
def test_a_level_too_many_is_refused_wherever_it_is(body: bytes) -> None:
    with pytest.raises(BadJson, match=f"deeper than {MAX_DEPTH} levels"):
        strict_json.parse(body)


@pytest.mark.parametrize(
    "body", [b'"\\u0000"', b'["\\ud800"]', b'{"a":"\\u0000"}', b'{"\\u0000":1}', b'{"a":{"b":["\\udfff"]}}']
)
def test_a_string_that_no_store_takes_is_refused_wherever_it_is(body: bytes) -> None:
    with pytest.raises(BadJson, match="NUL or an unpaired surrogate"):
        strict_json.parse(body)
