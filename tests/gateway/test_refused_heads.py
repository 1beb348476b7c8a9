"""Requests that never become one: the parser refuses their head, or their connection is one too many.

Each gets an error in the form of the API that its path names, from both servers of the port.
"""

import asyncio
import json

import pytest

from agent.common.http1 import overflow
from agent.common.http1.target import path_of, refused_target, target_of
from models_app.gateway import refusals
from tests.gateway.downstream import Raw
from tests.waiting import until

FORMS = {
    "/v1/messages": "anthropic",
    "/v1/messages?beta=true": "anthropic",
    "/v1/messages/count_tokens": "anthropic",
    "//v1//messages/": "anthropic",
    "http://master:8080/v1/messages": "anthropic",
    "/v1/%6dessages": "anthropic",
    "/v1/responses": "openai",
    "/v1/chat/completions": "openai",
    "/v1/models/org/messages": "openai",
    "/v1/nothing": "openai",
    "/pages/echo": "problem",
    "/v1x/messages": "problem",
}


def form_of(body):
    """The form of an error, and its code."""
    found = json.loads(body)
    if found.get("type") == "error":
        assert set(found["error"]) == {"type", "message", "code"}
        return "anthropic", found["error"]["code"]
    if "error" in found:
        assert set(found["error"]) == {"message", "type", "param", "code"}
        return "openai", found["error"]["code"]
    assert {"title", "status", "detail"} <= set(found)
    return "problem", found["code"]


def read(answer):
    """The status, head and body of a whole response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) == len(body)
    return int(head.split(b" ")[1]), head, body


HEADS = {
    "another method": "FOO {} HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method in lower case": "post {} HTTP/1.1\r\nHost: x\r\n\r\n",
    "another version": "POST {} HTTP/9.9\r\nHost: x\r\n\r\n",
    "no version": "POST {} HTTQ\r\nHost: x\r\n\r\n",
    "a control character in the target": "POST {}\x01y HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": "POST {} HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": "POST {} HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "both framings": "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
    "a length that is none": "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: two\r\n\r\n",
    "another coding": "POST {} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "a space before the colon": "POST {} HTTP/1.1\r\nHost : x\r\n\r\n",
    "a folded header": "POST {} HTTP/1.1\r\nHost: x\r\nX-A: a\r\n b\r\n\r\n",
    "a NUL in a header": "POST {} HTTP/1.1\r\nHost: x\r\nX-A: a\0b\r\n\r\n",
    "many headers": "POST {} HTTP/1.1\r\nHost: x\r\n" + "X-A: a\r\n" * 250 + "\r\n",
    "a long header": "POST {} HTTP/1.1\r\nHost: x\r\nX-A: " + "a" * 70_000 + "\r\n\r\n",
}
WITHOUT_TARGET = {"another method", "a method in lower case"}


@pytest.mark.e2e
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("target", FORMS)
def test_a_head_that_the_parser_refuses_gets_an_error_of_its_api(each_protocol, kind, target):
    data = HEADS[kind].replace("{}", target).encode("latin-1")
    # A method is refused as soon as it is read, before the target has arrived.
    steps = [len(data)] if len(data) > 1000 or kind in WITHOUT_TARGET else [len(data), 7]
    for step in steps:
        with Raw(each_protocol) as client:
            for at in range(0, len(data), step):
                client.socket.sendall(data[at : at + step])
            answer = client.read_all()
        status, head, body = read(answer)
        form, code = form_of(body)
        assert (status, form) == (400, FORMS[target])
        assert code == ("bad_request" if form == "problem" else "invalid_request")
        expected = b"application/problem+json" if form == "problem" else b"application/json"
        assert b"content-type: " + expected in head
    assert each_protocol.engine.seen == []


@pytest.mark.e2e
@pytest.mark.parametrize("start", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\xff\xfe\r\n", b"EHLO x\r\n\r\n"])
def test_what_names_no_path_gets_openais_form(each_protocol, start):
    with Raw(each_protocol) as client:
        client.socket.sendall(start)
        client.socket.sendall(b"\r\n\r\n" * 5)
        status, _, body = read(client.read_all())
    assert (status, form_of(body)) == (400, ("openai", "invalid_request"))


@pytest.mark.e2e
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/pages/echo"])
def test_a_client_that_still_sends_can_read_the_refusal(each_protocol, path):
    for _ in range(10):
        with Raw(each_protocol) as client:
            client.socket.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n".encode())
            client.socket.sendall(b"x" * 3_000_000)
            assert read(client.read_all())[0] == 400


@pytest.mark.e2e
def test_a_body_that_breaks_before_the_response_is_refused_and_the_engine_stops(each_protocol):
    with Raw(each_protocol) as client:
        client.head("Transfer-Encoding: chunked", path="/v1/messages")
        client.socket.sendall(b'5\r\n{"mod\r\nnonsense\r\n')
        status, _, body = read(client.read_all())
    assert (status, form_of(body)) == (400, ("anthropic", "invalid_request"))
    assert each_protocol.engine.seen == []


@pytest.fixture
def full(each_protocol, monkeypatch):
    """A fleet whose one connection for each address is in use."""
    monkeypatch.setattr(each_protocol.sockets, "_limit", 1)
    until(lambda: not each_protocol.sockets._open, "other connections to end")
    go = asyncio.Event()

    async def script(seen):
        await go.wait()
        await seen.answer(b"{}")

    each_protocol.engine.script = script
    with Raw(each_protocol) as busy:
        busy.post({"model": "m"})
        until(lambda: each_protocol.engine.seen, "the request")
        yield each_protocol
        each_protocol.signal(go)
        busy.read_until(b"{}")


@pytest.mark.e2e
@pytest.mark.parametrize("target", FORMS)
def test_a_connection_too_many_is_refused_in_the_form_of_its_api(full, target):
    body = b"x" * 300_000
    lines = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for step in (1_000_000, 5):
        with Raw(full) as client:
            data = lines.encode() + (body if step > 5 else b"")
            for at in range(0, len(data), step):
                client.socket.sendall(data[at : at + step])
            status, head, found = read(client.read_all())
        assert (status, form_of(found)) == (503, (FORMS[target], "too_many_connections"))
        assert b"retry-after: 2" in head
    assert len(full.engine.seen) == 1


@pytest.mark.e2e
def test_connections_too_many_that_are_silent_are_refused_soon_and_hold_nothing(full, monkeypatch):
    monkeypatch.setattr(overflow, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(overflow, "MOST_AT_ONCE", 3)
    clients = [Raw(full) for _ in range(6)]
    answers = [read(client.read_all()) for client in clients]
    assert [(status, form_of(found)) for status, _, found in answers] == [(503, ("openai", "too_many_connections"))] * 6
    for client in clients:
        client.socket.close()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("start", "target"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nHost: /x\r\n", b"/v1/messages"),
        (b"\r\n\r\nPOST\t/v1/messages?a=b\tHTTP/1.1\n", b"/v1/messages?a=b"),
        (b"/v1/messages", b"/v1/messages"),
        (b"POST  http://h:1/v1/messages HTTP/1.1", b"http://h:1/v1/messages"),
        (b"CONNECT h:443 HTTP/1.1\r\nX: /v1/messages", b""),
        (b"POST * HTTP/1.1", b""),
        (b"\x16\x03\x01/v1/messages", b""),
        (b"POST /v1/messages\x01y HTTP/1.1", b"/v1/messages"),
        (b"", b""),
    ],
)
def test_the_target_is_read_from_a_malformed_line(start, target):
    assert target_of(start) == target
    assert refused_target(ValueError(), b"", start) == target
    assert refused_target(ValueError(), b"/read", start) == b"/read"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("target", "path"),
    [(b"/a?b", b"/a"), (b"http://h/a?b", b"/a"), (b"http://h", b""), (b"/a?http://h/b", b"/a"), (b"//h/a", b"//h/a")],
)
def test_the_path_of_a_target(target, path):
    assert path_of(target) == path


@pytest.mark.unit
def test_the_gateway_leaves_other_paths_to_the_pages():
    assert refusals.response(b"/login", 400, "bad_request", "Words.") is None
    assert refusals.response(b"/v1", 400, "bad_request", "Words.") is not None
    assert refusals.response(b"/v1/\xff%ff", 408, "request_timeout", "Words.").startswith(b"HTTP/1.1 408 ")
