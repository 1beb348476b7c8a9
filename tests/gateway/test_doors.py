"""Odd and slow clients at each server on the port: the gateway's own, uvicorn with the gateway, uvicorn with pages."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from agent.common.http1 import server
from mirbad.web import connection
from tests.gateway.downstream import CHAT, Raw
from tests.gateway.fleet import SECRET
from tests.waiting import until

pytestmark = pytest.mark.e2e

BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
SIZES = {"small": 10, "large": 300_000}


@pytest.fixture(params=["v1", "pages"])
def door(request, each_protocol):
    """One server, the path of a request to it, and the bodies that arrived."""
    path = CHAT if request.param == "v1" else "/pages/echo"
    each_protocol.pages_seen.clear()

    def arrived():
        seen = each_protocol.engine.seen
        return each_protocol.pages_seen if request.param == "pages" else [one.body for one in seen]

    return SimpleNamespace(fleet=each_protocol, path=path, arrived=arrived, is_v1=request.param == "v1")


def head(door, *lines, host="Host: x"):
    given = [f"POST {door.path} HTTP/1.1", host, f"Authorization: Bearer {SECRET}", *lines]
    return "\r\n".join([*filter(None, given), "", ""]).encode()


def framed(body, *, chunked):
    if not chunked:
        return [f"Content-Length: {len(body)}"], body
    cuts = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    return ["Transfer-Encoding: chunked"], b"".join(b"%x\r\n%b\r\n" % (len(cut), cut) for cut in cuts) + b"0\r\n\r\n"


def answered(client):
    """The status of the next response, which is read whole."""
    answer = client.read_until(b"\r\n\r\n")
    first, _, rest = answer.partition(b"\r\n\r\n")
    length = int(first.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(rest) < length:
        rest += client.socket.recv(65536)
    return int(first.split(b" ")[1])


OFFERS = {
    "h2c": ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA"],
    "TLS": ["Upgrade: TLS/1.0", "Connection: upgrade"],
    "websocket": ["Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"],
    "several": ["Upgrade: websocket, h2c", "Connection: Upgrade"],
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", SIZES)
def test_a_post_that_offers_another_protocol_keeps_its_body_and_its_connection(door, offer, chunked, size):
    body = BODY % (b"x" * SIZES[size])
    lines, data = framed(body, chunked=chunked)
    with Raw(door.fleet) as client:
        for together in (True, False):
            if together:
                client.socket.sendall(head(door, *OFFERS[offer], *lines) + data)
            else:
                client.socket.sendall(head(door, *OFFERS[offer], *lines))
                client.socket.sendall(data[:5])
                client.socket.sendall(data[5:])
            assert answered(client) == 200
    assert door.arrived() == [body, body]


def test_a_tunnel_is_refused(door):
    with Raw(door.fleet) as client:
        client.socket.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert client.read_all().startswith(b"HTTP/1.1 400 ")
    assert door.arrived() == []


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "later"])
def test_a_client_that_ends_its_side_gets_the_response(door, slow, monkeypatch):
    go = asyncio.Event()

    async def script(seen):
        await go.wait()
        await seen.answer(b'{"choices":[]}')

    monkeypatch.setattr(door.fleet, "page_pause", go.wait)
    door.fleet.engine.script = script
    with Raw(door.fleet) as client:
        body = BODY % b"x"
        client.socket.sendall(head(door, f"Content-Length: {len(body)}") + body)
        client.socket.shutdown(socket.SHUT_WR)
        if slow:
            assert client.read_until(b"/1.1 ") == b"HTTP/1.1 "
        door.fleet.signal(go)
        answer = client.read_all()
    assert answer.startswith(b"200 OK\r\n" if slow else b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith((b'choices":[]}' if door.is_v1 else b"%d" % len(body), b"\r\n0\r\n\r\n"))


def test_a_stream_goes_on_for_a_client_that_ends_its_side_in_it(each_protocol):
    go = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(b'data: {"choices":[1]}\n\n')
        await go.wait()
        await seen.chunk(b'data: {"choices":[2]}\n\n')
        await seen.end()

    each_protocol.engine.script = script
    with Raw(each_protocol) as client:
        client.post({"model": "m", "stream": True})
        seen = client.read_until(b"[1]}\n\n\r\n")
        client.socket.shutdown(socket.SHUT_WR)
        seen += client.read_until(b"0")
        each_protocol.signal(go)
        seen += client.read_all()
    body = seen.partition(b"\r\n\r\n")[2]
    assert unchunked(body) == b'data: {"choices":[1]}\n\ndata: {"choices":[2]}\n\n'


def unchunked(data):
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return whole


def test_connection_close_is_obeyed(door):
    body = BODY % b"x"
    with Raw(door.fleet) as client:
        client.socket.sendall(head(door, f"Content-Length: {len(body)}", "Connection: close") + body + b"\r\n")
        answer = client.read_all()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" in answer


HEADS = {
    "one long header": ["X-Long: " + "a" * 70_000],
    "long headers": [f"X-{number}: " + "a" * 1000 for number in range(70)],
    "many headers": [f"X-{number}: a" for number in range(250)],
    "a long name": ["X" * 70_000 + ": a"],
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("step", [1_000_000, 20_000, 501])
def test_a_head_that_is_too_large_is_refused_however_it_arrives(door, kind, step):
    body = BODY % b"x"
    data = head(door, f"Content-Length: {len(body)}", *HEADS[kind]) + body
    with Raw(door.fleet) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for at in range(0, len(data), step):
                client.socket.sendall(data[at : at + step])
            answer = client.read_all()
        except ConnectionError:
            answer = b"HTTP/1.1 400 "  # it was refused while it was being sent
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert door.arrived() == []


@pytest.mark.parametrize("host", ["Host: x", "Host: " + "x" * 200])
def test_a_head_of_the_usual_size_is_served_byte_by_byte(door, host):
    body = BODY % b"x"
    data = head(door, f"Content-Length: {len(body)}", "X-Long: " + "a" * 500, host=host) + body
    with Raw(door.fleet) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            client.socket.sendall(bytes([byte]))
        assert answered(client) == 200
    assert door.arrived() == [body]


AMBIGUOUS = {
    "trailers": (["Transfer-Encoding: chunked"], b"2\r\n{}\r\n0\r\nHost: y\r\n\r\n"),
    "two hosts": (["Host: y", "Content-Length: 2"], b"{}"),
    "two codings": (["Transfer-Encoding: gzip, chunked"], b"2\r\n{}\r\n0\r\n\r\n"),
    "another coding": (["Transfer-Encoding: identity"], b"{}"),
    "both framings": (["Content-Length: 2", "Transfer-Encoding: chunked"], b"2\r\n{}\r\n0\r\n\r\n"),
    "two lengths": (["Content-Length: 2", "Content-Length: 3"], b"{} "),
    "a folded header": (["X-A: a", " b", "Content-Length: 2"], b"{}"),
    "a bare line feed": (["X-A: a\nX-B: b", "Content-Length: 2"], b"{}"),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
@pytest.mark.parametrize("offer", [[], OFFERS["h2c"]], ids=["plain", "with an offer"])
def test_what_two_servers_could_read_in_two_ways_is_refused(door, kind, offer):
    lines, body = AMBIGUOUS[kind]
    with Raw(door.fleet) as client:
        client.socket.sendall(head(door, *offer, *lines) + body)
        answer = client.read_all()
    assert answer[:13] in (b"HTTP/1.1 400 ", b"")  # trailers come when the response may have begun: then it is cut
    assert door.arrived() in ([], [b"{}"] if kind == "trailers" else [])


@pytest.mark.parametrize("sent", [b"P", b"POST /pages/echo HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_a_head_that_does_not_come_on_ends_its_connection(each_protocol, sent, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with Raw(each_protocol) as client:
        client.socket.sendall(sent)
        assert client.read_all()[:13] in (b"", b"HTTP/1.1 408 ")


@pytest.mark.parametrize("limit", ["BODY_FIRST_SECONDS", "BODY_TOTAL_SECONDS"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_slow_body_to_a_page_is_refused(each_protocol, limit, chunked, monkeypatch):
    monkeypatch.setattr(connection, limit, 0.3)
    monkeypatch.setattr(connection, "BODY_BYTES_PER_SECOND", 1_000_000)
    if limit == "BODY_TOTAL_SECONDS":
        monkeypatch.setattr(connection, "BODY_FIRST_SECONDS", 0.1)
        monkeypatch.setattr(connection, "BODY_BYTES_PER_SECOND", 1)
    with Raw(each_protocol) as client:
        line = "Transfer-Encoding: chunked" if chunked else "Content-Length: 100"
        client.socket.sendall(b"POST /pages/echo HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n5\r\n" % line.encode())
        answer = client.read_all()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "request_timeout"' in answer
    assert each_protocol.pages_seen == []


def test_an_address_has_so_many_connections_and_idle_ones_make_space(door, monkeypatch):
    monkeypatch.setattr(door.fleet.sockets, "_limit", 3)
    until(lambda: not door.fleet.sockets._open, "other connections to end")
    go = asyncio.Event()

    async def script(seen):
        await go.wait()
        await seen.answer(b"{}")

    monkeypatch.setattr(door.fleet, "page_pause", go.wait)
    door.fleet.engine.script = script
    body = BODY % b"x"
    request = head(door, f"Content-Length: {len(body)}") + body
    with Raw(door.fleet) as idle, Raw(door.fleet) as one, Raw(door.fleet) as two, Raw(door.fleet) as three:
        for busy in (one, two, three):
            busy.socket.sendall(request)
        assert idle.read_all() == b""
        until(lambda: len(door.arrived()) + len(door.fleet.engine.seen) >= 3 or door.is_v1, "the requests")
        with Raw(door.fleet) as more:
            refusal = more.read_all()
        assert refusal.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in refusal
        assert b"retry-after: " in refusal
        door.fleet.signal(go)
        for busy in (one, two, three):
            assert answered(busy) == 200
        with Raw(door.fleet) as more:
            more.socket.sendall(request)
            assert answered(more) == 200


def test_websockets_count_as_connections_of_their_address_and_make_no_space(each_protocol, monkeypatch):
    monkeypatch.setattr(each_protocol.sockets, "_limit", 3)
    until(lambda: not each_protocol.sockets._open, "other connections to end")
    shake = [
        *("GET /pages/live HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket"),
        *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", "", ""),
    ]
    with Raw(each_protocol) as one, Raw(each_protocol) as two:
        with Raw(each_protocol) as three:
            for client in (one, two, three):
                client.socket.sendall("\r\n".join(shake).encode())
                assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
            with Raw(each_protocol) as more:
                assert b"too_many_connections" in more.read_all()
        until(lambda: len(next(iter(each_protocol.sockets._open.values()))) == 2, "the third to be forgotten")
        with Raw(each_protocol) as more:
            more.socket.sendall(b"GET /pages/echo HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answered(more) == 200
        one.socket.sendall(b"\x89\x80\x00\x00\x00\x00")  # a ping
        assert one.socket.recv(2) == b"\x8a\x00"
    until(lambda: not each_protocol.sockets._open, "all to be forgotten")
