"""Hints: sent through a real broker, lost without harm when there is none."""

import asyncio
import json
import os
import time

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.layers import channel_layers, get_channel_layer
from channels.routing import URLRouter

from mirbad.live import consumers, invalidations
from mirbad.routing import websocket_urlpatterns
from tests.pages import broker

pytestmark = [pytest.mark.app, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def broker_url():
    with broker.running() as url:
        yield url


def _layer(settings, url: str) -> None:
    settings.REDIS_URL = url
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [url], "prefix": "mirbad"}}
    }
    channel_layers.backends.clear()


@pytest.fixture
def layer(settings, broker_url):
    _layer(settings, broker_url)
    yield
    invalidations.flush()
    channel_layers.backends.clear()


async def _heard(channel: str) -> dict:
    return await asyncio.wait_for(get_channel_layer().receive(channel), 5)


async def test_a_hint_reaches_the_group_from_inside_an_event_loop(layer):
    channel = await get_channel_layer().new_channel()
    await get_channel_layer().group_add(invalidations.GROUP, channel)
    invalidations.changed("nodes", "atlas")
    assert await _heard(channel) == {"type": "invalidations", "changed": [["nodes", "atlas"]]}


async def test_equal_hints_that_wait_are_sent_once(layer):
    channel = await get_channel_layer().new_channel()
    await get_channel_layer().group_add(invalidations.GROUP, channel)
    for _ in range(500):
        invalidations.changed("models", "same")
    invalidations.changed("models", "last")
    heard = []
    while not heard or heard[-1] != "last":
        heard += [subject for _, subject in (await _heard(channel))["changed"]]
    assert len(heard) < 100


def test_without_a_broker_a_hint_costs_nothing(settings, monkeypatch):
    settings.REDIS_URL = ""
    monkeypatch.setattr(invalidations, "_sender", None)
    invalidations.changed("nodes", "atlas")
    assert invalidations._sender is None, "there is no thread that would send it"


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere/at/all.sock"])
def test_a_broker_that_is_away_neither_raises_nor_blocks(settings, url):
    _layer(settings, url)
    begun = time.monotonic()
    for number in range(200):
        invalidations.changed("nodes", str(number))
    assert time.monotonic() - begun < 0.5
    assert invalidations.flush(5)
    channel_layers.backends.clear()


async def test_a_broker_that_hangs_is_given_up_on(settings, tmp_path):
    over, visitors = asyncio.Event(), []

    async def hang(_reader, writer):
        visitors.append(writer)
        await over.wait()

    path = f"/tmp/mb-{os.getpid()}.sock"
    async with await asyncio.start_unix_server(hang, path):
        _layer(settings, f"unix://{path}")
        begun = time.monotonic()
        invalidations.changed("nodes", "atlas")
        assert time.monotonic() - begun < 0.5
        assert await asyncio.to_thread(invalidations.flush, 5)
        assert time.monotonic() - begun < 4
        over.set()
        for writer in visitors:
            writer.close()
            await writer.wait_closed()
    assert visitors
    channel_layers.backends.clear()


class Socket:
    """The browser's end of the websocket."""

    def __init__(self, cookie: str) -> None:
        headers = [(b"cookie", f"sessionid={cookie}".encode())] if cookie else []
        scope = {"type": "websocket", "path": "/live", "query_string": b"", "headers": headers, "subprotocols": []}
        application = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
        self._ends = ApplicationCommunicator(application, scope)

    async def open(self) -> None:
        await self._ends.send_input({"type": "websocket.connect"})
        assert (await self.output())["type"] == "websocket.accept"

    async def output(self) -> dict:
        return await self._ends.receive_output(5)

    async def hear(self) -> str:
        message = await self.output()
        assert message["type"] == "websocket.send"
        return message["text"]

    async def say(self, text: str) -> None:
        await self._ends.send_input({"type": "websocket.receive", "text": text})

    async def close(self) -> None:
        await self._ends.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._ends.wait(5)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["owner", "operator", "viewer"])
async def test_people_with_a_role_hear_what_changed(layer, people, name):
    socket = Socket(people[name].client.cookies["sessionid"].value)
    await socket.open()
    for subject in ("atlas", "atlas", "local"):
        invalidations.changed("nodes", subject)
    assert json.loads(await socket.hear()) == {"topic": "nodes", "id": "atlas"}
    assert json.loads(await socket.hear()) == {"topic": "nodes", "id": "local"}
    await socket.say("ping")
    assert await socket.hear() == "pong"
    await socket.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["stranger", ""])
async def test_strangers_are_told_to_sign_in(layer, people, name):
    socket = Socket(people[name].client.cookies["sessionid"].value if name else "")
    await socket.open()
    assert await socket.output() == {"type": "websocket.close", "code": consumers.UNAUTHORIZED}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ending", ["role", "session"])
async def test_who_loses_the_right_hears_nothing_more(layer, viewer, ending):
    socket = Socket(viewer.client.cookies["sessionid"].value)
    await socket.open()
    if ending == "role":
        await database_sync_to_async(viewer.user.groups.clear)()
    else:
        await sync_to_async(viewer.client.logout)()
    invalidations.changed("nodes", "atlas")
    answer = await socket.output()
    assert answer["type"] == "websocket.close"
    assert answer["code"] == consumers.UNAUTHORIZED
