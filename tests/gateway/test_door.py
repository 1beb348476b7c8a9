"""The whole way: client, door under uvicorn, mutual TLS, relay, engine, and back."""

import http.client
import json

import pytest

from tests.gateway.fleet import ENGINE_KEY, SECRET

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"


def ask(fleet, body, path=CHAT, key=SECRET, method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=20)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    sent = {"Content-Type": "application/json", **headers}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    connection.request(method, path, data, sent)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response, data


def test_an_answer_comes_back_as_the_engine_gave_it(fleet):
    response, data = ask(fleet, {"model": "m", "messages": []})
    assert response.status == 200
    assert json.loads(data)["usage"]["completion_tokens"] == 2
    seen = fleet.engine.seen[-1]
    assert seen.path == CHAT
    assert seen.headers["authorization"] == f"Bearer {ENGINE_KEY}"
    assert SECRET not in str(seen.headers)


def test_a_stream_is_byte_exact_though_split_inside_characters_and_events(fleet):
    text = 'data: {"choices":[{"delta":{"content":"café"}}]}\n\ndata: [DONE]\n\n'.encode()
    cut = text.index("é".encode()) + 1

    async def script(seen):
        await seen.events(text[:3], text[3:cut], text[cut : cut + 10], text[cut + 10 :])

    fleet.engine.script = script
    response, data = ask(fleet, {"model": "m", "stream": True, "messages": []})
    assert data == text
    assert response.getheader("x-accel-buffering") == "no"
    assert response.getheader("cache-control") == "no-cache"
    assert fleet.engine.seen[-1].json["stream_options"] == {"include_usage": True}
