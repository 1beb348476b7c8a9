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
