"""The whole way: client, door under uvicorn, mutual TLS, relay, engine, and back."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from models_app.gateway.table import NodeState, RouteState
from tests.gateway.downstream import CHAT, Raw, ask, refused
from tests.gateway.events import DONE, STREAM, USAGE, delta
from tests.gateway.fleet import ENGINE_KEY, SECRET, model
from tests.waiting import pause_async

pytestmark = pytest.mark.e2e


def test_an_answer_comes_back_as_the_engine_gave_it(fleet):
    text = b'{ "choices" : [],"usage":{"prompt_tokens":1,"completion_tokens":2}, "caf\xc3\xa9": 1.10 }'

    async def script(seen):
        await seen.answer(text, "Content-Type: application/json; charset=utf-8", "Server: secret", "Set-Cookie: a=b")

    fleet.engine.script = script
    body = b'{ "model":"org/m", "messages" : [ ] , "x": 1.10}'
    response, data = ask(fleet, body, Cookie="session=1", X_Forwarded_For="10.0.0.9", x_request_id="mine-1")
    assert (response.status, data) == (200, text)
    assert response.getheader("content-type") == "application/json; charset=utf-8"
    assert response.getheader("x-request-id") == "mine-1"
    assert response.getheader("set-cookie") is None
    seen = fleet.engine.seen[-1]
    assert (seen.method, seen.path, seen.body) == ("POST", CHAT, body)
    assert seen.headers["authorization"] == f"Bearer {ENGINE_KEY}"
    assert seen.headers["x-request-id"] == "mine-1"
    assert not {"cookie", "x-forwarded-for", "mirbad-model", "mirbad-generation", "mirbad-key"} & set(seen.headers)
    assert SECRET not in str(seen.headers)


def test_a_stream_is_byte_exact_though_split_inside_characters_and_events(fleet):
    text = delta("café") + b": comment\r\n\r\n" + delta("né") + DONE
    cuts = [3, text.index("é".encode()) + 1, text.index("é".encode()) + 10, len(text) - 20, len(text) - 1]

    async def script(seen):
        await seen.head("Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            await seen.chunk(text[start:end])
            await pause_async(0.005)
        await seen.end()

    fleet.engine.script = script
    for extra in ({}, {"stream_options": {"include_usage": True}}):
        response, data = ask(fleet, STREAM | extra)
        assert data == text
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.getheader("x-accel-buffering") == "no"
        assert response.getheader("cache-control") == "no-cache"


def test_bytes_leave_as_they_come_and_are_not_gathered(fleet):
    go_on = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("first"))
        await go_on.wait()
        await seen.chunk(DONE)
        await seen.end()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        assert b"first" in client.read_until(b"first")
        fleet.loop.call_soon_threadsafe(go_on.set)
        assert b"[DONE]" in client.read_until(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("asked", "shown"),
    [({}, False), ({"stream_options": {"include_usage": True}}, True), ({"stream_options": {}}, False)],
)
def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(fleet, asked, shown):
    async def script(seen):
        await seen.events(delta("a"), USAGE + DONE)

    fleet.engine.script = script
    before = dict(fleet.metrics.tokens)
    _, data = ask(fleet, STREAM | asked)
    assert data == delta("a") + (USAGE if shown else b"") + DONE
    sent = fleet.engine.seen[-1].json["stream_options"]
    assert sent == {"include_usage": True}
    assert fleet.metrics.tokens["m", "completion"] - before.get(("m", "completion"), 0) == 7
    assert fleet.metrics.tokens["m", "prompt"] - before.get(("m", "prompt"), 0) == 5


def test_embeddings_and_plain_completions_go_the_same_way(fleet):
    for path in ("/v1/embeddings", "/v1/completions"):
        response, _ = ask(fleet, {"model": "m", "input": "x"}, path)
        assert response.status == 200
        assert fleet.engine.seen[-1].path == path


def test_an_error_of_the_engine_passes_unchanged(fleet):
    text = b'{"error":"Unauthorized"}'

    async def script(seen):
        await seen.answer(text, "Content-Type: application/json", "Retry-After: 7", status="429 Too Many Requests")

    fleet.engine.script = script
    response, data = ask(fleet, STREAM)
    assert (response.status, data, response.getheader("retry-after")) == (429, text, "7")


def test_models_are_listed_and_looked_up(fleet):
    response, data = ask(fleet, None, "/v1/models", method="GET")
    assert response.status == 200
    assert [m["id"] for m in json.loads(data)["data"]] == ["m", "org/m"]
    response, data = ask(fleet, None, "/v1/models/org/m", method="GET")
    assert json.loads(data) == {"id": "org/m", "object": "model", "created": 1700000000} | {
        "owned_by": "mirbad", "state": "ready"
    }  # fmt: skip
    assert refused(fleet, None, "/v1/models/x", method="GET") == (404, "model_not_found")
    assert refused(fleet, b"{}", "/v1/models") == (405, "method_not_allowed")
    assert ask(fleet, None, "/v1/models", method="HEAD")[0].status == 200


def test_a_large_body_reaches_the_engine_unchanged(fleet):
    body = json.dumps({"messages": [{"role": "user", "content": 'é\\n"' * 50_000}], "model": "m"}).encode()
    assert ask(fleet, body)[0].status == 200
    assert fleet.engine.seen[-1].body == body
    streamed = body[:-1] + b', "stream": true}'
    assert ask(fleet, streamed)[0].status == 200
    assert fleet.engine.seen[-1].json == json.loads(streamed) | {"stream_options": {"include_usage": True}}


def test_many_streams_at_once_do_not_mix_and_leave_nothing_behind(fleet):
    async def script(seen):
        mark = seen.json["messages"][0]["content"]
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for number in range(30):
            event = delta(f"{mark} é {number}")
            await seen.chunk(event[:7])
            await pause_async(0.002)
            await seen.chunk(event[7:])
        await seen.chunk(DONE)
        await seen.end()

    fleet.engine.script = script

    def one(number):
        body = STREAM | {"messages": [{"role": "user", "content": f"client-{number}"}]}
        if number % 3 == 0:
            with Raw(fleet) as client:
                client.post(body)
                client.read_until(b"data:")
            return True
        expected = b"".join(delta(f"client-{number} é {n}") for n in range(30)) + DONE
        return ask(fleet, body)[1] == expected

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(one, range(48)))
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0 and not fleet.gateway.upstream.in_flight, 3)
    assert fleet.wait_for(lambda: all(opened == idle for opened, idle in fleet.gateway.pools.counts().values()), 2)


def test_a_model_that_starts_is_waited_for_when_it_allows_that(fleet):
    fleet.table(model(RouteState.STARTING, wait_seconds=5.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.metrics.waiting["m"] == 1, 2)
        fleet.table(model(RouteState.STARTING, wait_seconds=5.0))
        assert fleet.metrics.waiting["m"] == 1
        fleet.table(model(wait_seconds=5.0))
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 200 ")
    assert fleet.metrics.waiting["m"] == 0


def test_waiting_ends_with_the_limit_of_the_model_or_with_its_failure(fleet):
    fleet.table(model(RouteState.STARTING, wait_seconds=0.2))
    began = time.monotonic()
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    assert 0.2 <= time.monotonic() - began < 2
    fleet.table(model(RouteState.STARTING, wait_seconds=30.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.metrics.waiting["m"] == 1, 2)
        fleet.table(model(RouteState.DOWN, wait_seconds=30.0))
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 503 ")


def test_the_openai_library_chats_streams_embeds_and_is_refused_in_its_own_words(fleet):
    async def script(seen):
        if seen.json.get("stream"):
            await seen.events(delta("Hel"), delta("lo"), USAGE, DONE)
        elif seen.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            await seen.answer(json.dumps({"object": "list", "model": "m", "data": data, "usage": {}}).encode())
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}
            answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            await seen.answer(json.dumps(answer).encode())

    fleet.engine.script = script
    messages = [{"role": "user", "content": "Say hello."}]
    url = f"http://127.0.0.1:{fleet.port}/v1"
    with openai.OpenAI(api_key=SECRET, base_url=url, max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=messages)
        assert answer.choices[0].message.content == "Hello"
        chunks = list(client.chat.completions.create(model="m", messages=messages, stream=True))
        assert "".join(c.choices[0].delta.content for c in chunks) == "Hello"
        options = {"include_usage": True}
        *_, last = client.chat.completions.create(model="m", messages=messages, stream=True, stream_options=options)
        assert last.usage.completion_tokens == 7
        assert client.embeddings.create(model="m", input="x", encoding_format="float").data[0].embedding == [0.5]
        assert [m.id for m in client.models.list()] == ["m", "org/m"]
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="nothing", messages=messages)
        assert unknown.value.code == "model_not_found"
        fleet.table(state=NodeState.OFFLINE)
        with pytest.raises(openai.InternalServerError) as offline:
            client.chat.completions.create(model="m", messages=messages)
        assert offline.value.code == "node_offline"
    with openai.OpenAI(api_key="ssk_wrong", base_url=url, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            client.models.list()
        assert wrong.value.code == "invalid_api_key"
