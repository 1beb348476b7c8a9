"""The allow-lists of headers: the same on both hops, and without credentials or addresses."""

import pytest

from agent.common.headers import RELAYED_REQUEST_HEADERS, REQUEST_HEADERS, RESPONSE_HEADERS, TRACE_HEADERS
from models_app.gateway import core

pytestmark = pytest.mark.unit

NEVER = {b"authorization", b"cookie", b"set-cookie", b"x-api-key", b"forwarded", b"x-forwarded-for", b"host", b"via"}


def test_no_list_names_a_credential_an_address_or_a_connection_header() -> None:
    for names in (RELAYED_REQUEST_HEADERS, RESPONSE_HEADERS):
        assert not NEVER & names
        assert not {b"connection", b"transfer-encoding", b"upgrade", b"trailer", b"te"} & names
        assert all(name == name.lower() for name in names)


def test_all_that_the_gateway_sends_on_passes_the_agent() -> None:
    sent = dict.fromkeys((*REQUEST_HEADERS, *NEVER), b"x")
    lines = core.upstream_header_lines(sent).lower().splitlines()
    assert {line.partition(b":")[0] for line in lines if line} == set(REQUEST_HEADERS) <= RELAYED_REQUEST_HEADERS
    traced = core.trace({b"traceparent": b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01", b"tracestate": b"a=b"})
    assert {name for name, _ in traced} <= set(TRACE_HEADERS) <= RELAYED_REQUEST_HEADERS
