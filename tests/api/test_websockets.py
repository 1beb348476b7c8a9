"""Websockets at addresses that have none: refused as a client's mistake, never as a fault."""

import pytest

from mirbad.routing import websocket_urlpatterns

pytestmark = pytest.mark.unit

PATHS = [
    "/other",
    "/",
    "/live/",
    "/livex",
    "/api/nodes",
    "/\x00",
    "/a\nb",
    "/healthz",
    "/v1/chat/completions",
    "/é",
    "//",
]


async def connect(path, extensions):
    from channels.routing import URLRouter

    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": path, "headers": [], "extensions": extensions}
    await URLRouter(websocket_urlpatterns)(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", PATHS)
async def test_an_address_without_a_websocket_is_404(path):
    start, body = await connect(path, {"websocket.http.response": {}})
    assert start["status"] == 404
    assert b"no websocket" in body["body"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_that_cannot_send_it_closes(path):
    (closed,) = await connect(path, {})
    assert closed["type"] == "websocket.close"
