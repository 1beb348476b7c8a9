"""Strict reading of enroll requests: 400 for anything odd, never more."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.common.strict_json import BadJson, parse
from mirbad.kernel.errors import InvalidRequest
from nodes.enrollment.body import read_enroll_request

pytestmark = pytest.mark.unit

GOOD = {"nodeId": "pc-1", "token": "t" * 60, "csrPem": "x", "address": None, "port": 9443, "machine": {"os": "Linux"}}
CANARY = "canary" * 9


def encoded(**changes) -> bytes:
    return json.dumps(GOOD | changes).encode()


def test_a_request_is_read():
    request = read_enroll_request(encoded())
    assert (request.node_id, request.port, request.machine.os) == ("pc-1", 9443, "Linux")


def test_fields_of_a_newer_agent_are_ignored():
    assert read_enroll_request(encoded(fromTheFuture={"a": [1]})).node_id == "pc-1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"nonsense",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"nodeId": "a", "nodeId": "b"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\\u0000"}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": "\x00"}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"[" * 33 + b"]" * 33,
        encoded() + b"{}",
        encoded(token="t" * 201),
        encoded(csrPem="x" * 16_385),
        encoded(port=0),
        encoded(port=70_000),
        encoded(port="1e99999"),
        encoded(machine={"gpus": [{"uuid": "u", "name": "n"}] * 65}),
        encoded(machine={"gpus": [{"uuid": "u", "name": "n", "memoryBytes": -1}]}),
        encoded(nodeId=None),
        encoded(token={"$ne": ""}),
    ],
)
def test_what_could_fool_or_exhaust_a_parser_is_a_bad_request(body):
    with pytest.raises(InvalidRequest):
        read_enroll_request(body)


def test_each_problem_is_named_by_its_field():
    with pytest.raises(InvalidRequest) as caught:
        read_enroll_request(encoded(port=0, machine={"gpus": [{"uuid": "u", "name": "n", "memoryBytes": -1}]}))
    assert caught.value.problems == [
        {"code": "invalid", "message": "Input should be greater than or equal to 1.", "field": "port"},
        {
            "code": "invalid",
            "message": "Input should be greater than or equal to 0.",
            "field": "machine.gpus.0.memoryBytes",
        },
    ]
    assert caught.value.detail == (
        "port: Input should be greater than or equal to 1. "
        "machine.gpus.0.memoryBytes: Input should be greater than or equal to 0."
    )


def test_of_many_problems_ten_are_named():
    gpus = [{"uuid": "u", "name": "n", "memoryBytes": -1}] * 20
    with pytest.raises(InvalidRequest) as caught:
        read_enroll_request(encoded(machine={"gpus": gpus}))
    assert len(caught.value.problems) == 10


def test_a_body_that_is_no_json_says_why():
    with pytest.raises(InvalidRequest) as caught:
        read_enroll_request(b'{"a": NaN}')
    with pytest.raises(BadJson) as reason:
        parse(b'{"a": NaN}')
    assert caught.value.detail == str(reason.value)


def test_brackets_inside_a_text_are_no_depth():
    assert parse(json.dumps({"a": "[" * 5000 + '"\\'}).encode())["a"].startswith("[[")


def test_the_sentence_never_repeats_what_was_sent():
    for body in (
        encoded(token=CANARY * 9),
        encoded(token=[CANARY]),
        encoded(port=CANARY),
        encoded(machine=CANARY),
        CANARY.encode(),
        b'{"' + CANARY.encode() + b'": NaN}',
    ):
        with pytest.raises(InvalidRequest) as caught:
            read_enroll_request(body)
        assert CANARY not in caught.value.detail
        assert CANARY not in str(caught.value.problems)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode())))
def test_no_bytes_end_in_an_unnamed_error(body):
    with pytest.raises(InvalidRequest):
        read_enroll_request(body)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "nodeUid"]), values, max_size=7))
def test_no_members_end_in_an_unnamed_error(changes):
    members = GOOD | changes
    try:
        node_id = read_enroll_request(json.dumps(members).encode()).node_id
    except InvalidRequest:
        node_id = members["nodeId"]
    assert node_id == members["nodeId"]


@pytest.mark.parametrize("port", [b"true", b"9443.0", b'"9443"'])
def test_a_port_is_a_number_and_nothing_that_could_be_read_as_one(port):
    body = b'{"nodeId": "pc-1", "token": "t", "csrPem": "c", "port": ' + port + b"}"
    with pytest.raises(InvalidRequest):
        read_enroll_request(body)
