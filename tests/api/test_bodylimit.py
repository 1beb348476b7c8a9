"""A large body is refused before it is stored, whether its length is told or not."""

import json

import pytest

from mirbad.api.bodylimit import BodyLimit

pytestmark = pytest.mark.unit

LIMIT = 1000


async def reads_all(scope, receive, send):
    total = 0
    while True:
        message = await receive()
        total += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(total).encode()})


async def ask(chunks, length=None):
    taken, sent = 0, []

    async def receive():
        nonlocal taken
        chunk = chunks[taken]
        taken += 1
        return {"type": "http.request", "body": chunk, "more_body": taken < len(chunks)}

    async def send(message):
        sent.append(message)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    await BodyLimit(reads_all, LIMIT)({"type": "http", "headers": headers}, receive, send)
    return sent[0]["status"], sent[1]["body"], taken


async def test_a_small_body_passes_untouched():
    assert await ask([b"a" * 400, b"b" * 600], 1000) == (200, b"1000", 2)


async def test_a_declared_length_over_the_limit_is_refused_unread():
    status, body, taken = await ask([b"a"], 200_000_000)
    assert (status, json.loads(body)["code"], taken) == (413, "payload_too_large", 0)


async def test_an_undeclared_body_is_read_no_further_than_the_limit():
    status, body, taken = await ask([b"a" * 600] * 1000)
    assert (status, json.loads(body)["code"], taken) == (413, "payload_too_large", 2)


async def test_the_web_process_asks_for_no_byte_of_a_body_that_is_too_large():
    from mirbad.asgi import Application

    sent = []

    async def receive():
        raise AssertionError("the body was asked for")

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/models",
        "query_string": b"",
        "headers": [(b"content-length", b"200000000")],
    }
    await Application()(scope, receive, send)
    assert sent[0]["status"] == 413
