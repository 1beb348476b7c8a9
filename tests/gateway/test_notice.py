"""A change is heard of at once where there is a broker, and in time where there is none."""

import asyncio

import pytest
from channels.layers import get_channel_layer

from mirbad.live.hints import GROUP
from models_app.gateway.notice import Notices

pytestmark = pytest.mark.app


@pytest.fixture
def layer(settings):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.REDIS_URL = "redis://there"
    return get_channel_layer


async def test_hints_of_keys_models_and_nodes_nudge_and_others_do_not(layer):
    nudges = asyncio.Queue()
    notices = Notices(lambda: nudges.put_nowait(1))
    notices.start()
    await asyncio.sleep(0.05)
    for topic in ("keys", "audit", "models", "nodes"):
        await layer().group_send(GROUP, {"type": "hint", "topic": topic, "id": "x"})
    for _ in range(3):
        await asyncio.wait_for(nudges.get(), 2)
    await asyncio.sleep(0.05)
    assert nudges.empty()
    await notices.stop()


async def test_without_a_broker_nothing_listens(settings):
    settings.REDIS_URL = ""
    notices = Notices(lambda: None)
    notices.start()
    assert notices._task is None
    await notices.stop()


async def test_a_broker_that_is_away_is_tried_again(layer, monkeypatch):
    from models_app.gateway import notice

    monkeypatch.setattr(notice, "_PAUSE_SECONDS", 0.01)
    calls = []

    def broken():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return layer()

    monkeypatch.setattr(notice, "get_channel_layer", broken)
    heard = asyncio.Event()
    notices = Notices(heard.set)
    notices.start()
    for _ in range(200):
        await asyncio.sleep(0.01)
        await layer().group_send(GROUP, {"type": "hint", "topic": "keys", "id": ""})
        if heard.is_set():
            break
    assert heard.is_set()
    await notices.stop()
