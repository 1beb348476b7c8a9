"""The bound on log-in requests in work, and ``/healthz`` beside them."""

import asyncio
import json

import pytest
from django.test import AsyncClient

from mirbad import health
from mirbad.accounts import door

pytestmark = pytest.mark.unit


class Django:
    """An application that holds each request until `free` is set."""

    def __init__(self) -> None:
        self.free, self.now, self.most = asyncio.Event(), 0, 0

    async def __call__(self, scope, receive, send) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.free.wait()
        self.now -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def answer(app, path, accept=b"*/*", body=(b"",)):
    sent, pieces = [], list(body)

    async def receive():
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "path": path, "headers": [(b"accept", accept)]}, receive, send)
    return sent


async def test_of_two_hundred_log_ins_few_are_in_work_and_the_rest_wait_or_are_refused():
    django = Django()
    app = door.LoginDoor(django)
    runs = [asyncio.create_task(answer(app, "/login")) for _ in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert django.now == door.AT_ONCE
    refused = [run.result()[0] for run in runs if run.done()]
    assert [one["status"] for one in refused] == [503] * (200 - door.AT_ONCE - door.MOST_WAITING)
    assert (b"retry-after", b"10") in refused[0]["headers"]
    django.free.set()
    await asyncio.gather(*runs)
    assert django.most == door.AT_ONCE
    assert (await answer(app, "/login"))[0]["status"] == 200


async def test_other_pages_do_not_wait_for_log_ins():
    django = Django()
    app = door.LoginDoor(django)
    runs = [asyncio.create_task(answer(app, path)) for path in ("/login",) * 9 + ("/nodes",) * 9]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert django.now == door.AT_ONCE + 9
    django.free.set()
    await asyncio.gather(*runs)


async def test_a_log_in_that_waits_too_long_is_refused_in_the_form_that_it_asked_for(monkeypatch):
    monkeypatch.setattr(door, "WAIT_SECONDS", 0.01)
    app = door.LoginDoor(Django())
    held = [asyncio.create_task(answer(app, "/login")) for _ in range(door.AT_ONCE)]
    await asyncio.sleep(0)
    page, document = await answer(app, "/login"), await answer(app, "/login", b"application/json")
    assert b"Try again" in page[1]["body"]
    assert json.loads(document[1]["body"])["code"] == "unavailable"
    for one in held:
        one.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_slow_bodies_take_no_place():
    django = Django()
    django.free.set()
    app = door.LoginDoor(django)
    stuck = asyncio.Event()

    async def never():
        await stuck.wait()

    scope = {"type": "http", "path": "/login", "headers": []}
    held = [asyncio.create_task(app(scope, never, None)) for _ in range(door.AT_ONCE + door.MOST_WAITING + 1)]
    await asyncio.sleep(0)
    assert (await answer(app, "/login"))[0]["status"] == 200
    for one in held:
        one.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert django.most == 1


@pytest.mark.parametrize("pieces", [[b"x" * 16384], [b"x"] * 16384, [b""], [b"a=b", b"", b"&c=d"]])
async def test_the_form_arrives_as_it_was_sent(pieces):
    arrived = []

    async def app(scope, receive, send):
        message = await receive()
        arrived.append((message["body"], message["more_body"]))
        assert (await receive())["type"] == "http.disconnect"

    await answer(door.LoginDoor(app), "/login", body=pieces)
    assert arrived == [(b"".join(pieces), False)]


@pytest.mark.parametrize("pieces", [[b"x" * 16385], [b"x"] * 16385, [b"x" * 1_000_000]])
async def test_a_form_that_is_too_large_is_refused(pieces):
    start, page = await answer(door.LoginDoor(Django()), "/login", b"application/json", body=pieces)
    assert (start["status"], json.loads(page["body"])["code"]) == (413, "payload_too_large")


async def test_a_client_that_leaves_gets_nothing():
    django = Django()
    assert await answer(door.LoginDoor(django), "/login", body=()) == []
    assert django.most == 0


async def test_health_is_answered_without_django():
    sent = []

    async def send(message):
        sent.append(message)

    await health.alive(send)
    page = await AsyncClient().get("/healthz")
    assert (sent[0]["status"], sent[1]["body"]) == (page.status_code, page.content)
    assert {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}.items() >= {
        "Content-Type": page["Content-Type"],
        "Cache-Control": page["Cache-Control"],
    }.items()
