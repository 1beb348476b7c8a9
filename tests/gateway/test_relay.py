"""The relay on the node: the requests and headers that it passes, and those that it refuses."""

import json

import aiohttp
import pytest

from agent.common.http1.client import ConnectFailed
from agent.wire.base import node_server_name
from models_app.gateway.pool import NodePool
from nodes.link.transport import Endpoint, client_context
from tests.gateway.engine import hello
from tests.gateway.fleet import ENGINE_KEY, UID, Trust

pytestmark = pytest.mark.e2e

NAME = node_server_name(UID)
NAMED = {"Mirbad-Model": "m", "Mirbad-Generation": "1"}


def call(fleet, path, method="POST", instance="p1", headers=None, data=b"{}"):
    """(status, headers, body) of a request straight to the agent."""
    url = f"https://{NAME}:{fleet.node.port}/agent/v1/instances/{instance}/relay/{path}"

    class Here(aiohttp.abc.AbstractResolver):
        async def resolve(self, host, port=0, family=0):
            return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

        async def close(self):
            pass

    async def work():
        connector = aiohttp.TCPConnector(ssl=fleet.trust.client, resolver=Here())
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.request(method, url, headers=NAMED if headers is None else headers, data=data) as answer,
        ):
            return answer.status, answer.headers, await answer.read()

    return fleet.run(work())


@pytest.mark.parametrize(
    ("path", "method", "instance", "headers", "status", "code"),
    [
        ("v1/chat/completions", "POST", "p2", NAMED, 404, "not_found"),
        ("v1/chat/completions", "POST", "p1", {}, 409, "generation_mismatch"),
        ("v1/chat/completions", "POST", "p1", NAMED | {"Mirbad-Generation": "2"}, 409, "generation_mismatch"),
        ("v1/chat/completions", "POST", "p1", NAMED | {"Mirbad-Model": "x"}, 409, "generation_mismatch"),
        ("admin", "POST", "p1", NAMED, 404, "not_found"),
        ("v1x", "GET", "p1", NAMED, 404, "not_found"),
        ("", "GET", "p1", NAMED, 404, "not_found"),
        ("v1//x", "POST", "p1", NAMED, 404, "not_found"),
        ("v1/%2e%2e/admin", "POST", "p1", NAMED, 404, "not_found"),
        ("v1/a%2F..%2Fb", "POST", "p1", NAMED, 404, "not_found"),
        ("v1/models", "DELETE", "p1", NAMED, 400, "invalid_request"),
    ],
)
def test_what_is_not_the_engines_never_reaches_it(fleet, path, method, instance, headers, status, code):
    found, answered, data = call(fleet, path, method, instance, headers)
    assert (found, json.loads(data)["code"]) == (status, code)
    assert "Mirbad-Answer" not in answered
    assert fleet.engine.seen == []


def test_an_engine_that_is_not_ready_or_not_there_is_a_refusal_of_the_agent(fleet):
    fleet.instances.ready = False
    assert call(fleet, "v1/models")[0] == 503
    fleet.instances.ready, fleet.instances.port = True, 9
    status, headers, data = call(fleet, "v1/models")
    assert (status, json.loads(data)["code"]) == (502, "engine_unreachable")
    assert "Mirbad-Answer" not in headers


@pytest.mark.parametrize("path", ["v1/models", "health", "metrics", "v1/a?b=c", "v1/a%3Fb%23c"])
def test_what_the_engine_says_is_marked_as_its_answer(fleet, path):
    async def script(seen):
        await seen.answer(
            b"x",
            "Content-Type: text/plain",
            "Set-Cookie: a=b",
            "Mirbad-Answer: agent",
            "Content-Encoding: gzip",
        )

    fleet.engine.script = script
    status, headers, data = call(fleet, path, "GET", data=None)
    assert (status, data) == (200, b"x")
    assert headers.getall("Mirbad-Answer") == ["engine"]
    assert headers["Content-Encoding"] == "gzip"
    assert "Set-Cookie" not in headers
    seen = fleet.engine.seen[-1]
    assert seen.path == "/" + path.partition("?")[0].replace("%23", "%23")
    assert seen.headers["authorization"] == f"Bearer {ENGINE_KEY}"


def test_the_callers_own_credentials_and_cookies_stay_behind(fleet):
    call(fleet, "v1/x", headers=NAMED | {"Authorization": "Bearer ssk_secret", "Cookie": "a=b", "X-Request-Id": "r"})
    seen = fleet.engine.seen[-1]
    assert seen.headers["authorization"] == f"Bearer {ENGINE_KEY}"
    assert "cookie" not in seen.headers
    assert seen.headers["x-request-id"] == "r"


def test_an_empty_answer_and_a_redirect_pass_as_they_are(fleet):
    async def script(seen):
        await seen.head("Location: http://192.0.2.1/", "Content-Length: 0", status="307 Elsewhere")

    fleet.engine.script = script
    status, headers, data = call(fleet, "v1/x")
    assert (status, data) == (307, b"")
    assert "Location" not in headers


def test_a_node_with_another_key_gets_no_request(fleet):
    pins = frozenset({"0" * 64})
    wrong = client_context(fleet.trust.identity, fleet.trust.bundle, pins)
    stranger = Trust()
    unknown = client_context(stranger.identity, fleet.trust.bundle, fleet.trust.pins)
    untrusted = client_context(fleet.trust.identity, stranger.bundle, fleet.trust.pins)

    async def dial(context, name=NAME):
        pool = NodePool(Endpoint("n1", "127.0.0.1", fleet.node.port, name, context, loopback_allowed=True), warm=0)
        return await pool.connect()

    for context in (wrong, untrusted):
        with pytest.raises(ConnectFailed):
            fleet.run(dial(context))
    with pytest.raises(ConnectFailed):
        fleet.run(dial(fleet.trust.client, "other.node.mirbad.internal"))

    async def ask_as_a_stranger():
        # With TLS 1.3 the server's refusal of a client comes after the client's handshake.
        connection = await dial(unknown)
        connection.begin(b"GET /agent/v1/instances/p1/relay/health HTTP/1.1\r\nHost: n\r\n\r\n", b"")
        await connection.head(2)

    with pytest.raises(Exception, match="closed before the response"):
        fleet.run(ask_as_a_stranger())
    assert fleet.engine.seen == []


def test_an_engine_that_closes_after_a_stream_gets_no_request_on_that_connection(fleet):
    fleet.instances.closes_after_stream = True
    streamed, peers = set(), []

    async def script(seen):
        peers.append(seen.writer.get_extra_info("peername"))
        if seen.writer in streamed:
            seen.writer.transport.abort()  # as llama.cpp, whose end of the connection comes a moment after the stream
        elif seen.json.get("stream"):
            streamed.add(seen.writer)
            await seen.events(b"data: [DONE]\n\n")
        else:
            await hello(seen)

    fleet.engine.script = script
    bodies = [b'{"stream": true}', b"{}", b"{}", b'{"stream": true}', b"{}"]
    assert [call(fleet, "v1/chat/completions", data=body)[0] for body in bodies] == [200] * 5
    assert peers[1] == peers[2] == peers[3], "others are used again"
    assert len(set(peers)) == 3


def test_an_engine_that_keeps_connections_after_a_stream_gets_the_next_request_on_it(fleet):
    peers = []

    async def script(seen):
        peers.append(seen.writer.get_extra_info("peername"))
        await seen.events(b"data: [DONE]\n\n")

    fleet.engine.script = script
    assert [call(fleet, "v1/chat/completions")[0] for _ in range(3)] == [200] * 3
    assert len(set(peers)) == 1
