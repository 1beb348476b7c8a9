"""A change reaches the gateway at once through the broker, and in time without one."""

import asyncio

import pytest
from channels.layers import get_channel_layer

from mirbad.live.invalidations import GROUP, message_of
from models_app.gateway.invalidation import InvalidationListener

pytestmark = pytest.mark.app


@pytest.fixture
def layer(settings):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.REDIS_URL = "redis://there"
    return get_channel_layer


async def joined(layer):
    """Return once the listener is a member of the group: in a few turns of the loop, as the layer is in memory."""
    for _ in range(100):
        if layer().groups.get(GROUP):
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody joined the group")


async def test_invalidations_of_keys_models_and_nodes_poll_the_table_and_others_do_not(layer):
    polls = asyncio.Queue()
    listener = InvalidationListener(lambda: polls.put_nowait(1))
    listener.start()
    await joined(layer)
    for topic in ("keys", "audit", "models", "nodes"):
        await layer().group_send(GROUP, message_of([("processes", ""), (topic, "x")]))
    for _ in range(3):  # messages arrive in order, so "audit" has been handled by then
        await asyncio.wait_for(polls.get(), 2)
    assert polls.empty()
    await listener.stop()
    assert not layer().groups.get(GROUP)


async def test_without_a_broker_nothing_listens(settings):
    settings.REDIS_URL = ""
    listener = InvalidationListener(lambda: None)
    listener.start()
    assert listener._task is None
    await listener.stop()


async def test_a_broker_that_is_down_is_tried_again(layer, monkeypatch):
    from models_app.gateway import invalidation

    monkeypatch.setattr(invalidation, "_RETRY_SECONDS", 0)
    calls = []

    def broken():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return layer()

    monkeypatch.setattr(invalidation, "get_channel_layer", broken)
    heard = asyncio.Event()
    listener = InvalidationListener(heard.set)
    listener.start()
    await joined(layer)
    await layer().group_send(GROUP, message_of([("keys", "")]))
    await asyncio.wait_for(heard.wait(), 2)
    assert len(calls) == 3
    await listener.stop()
