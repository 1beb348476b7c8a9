"""The whole way: client, door under uvicorn, mutual TLS, relay, engine, and back."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import openai
import psutil
import pytest

from models_app.gateway import refusals, visit
from models_app.gateway.table import NodeState, Route, RouteState
from tests.gateway.client import CHAT, Raw, ask, refused
from tests.gateway.fleet import ENGINE_KEY, EXPIRED_SECRET, NARROW_SECRET, SECRET, model
from tests.gateway.test_upstream import FakeTransport

pytestmark = pytest.mark.e2e

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def delta(text):
    return f'data: {{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}\n\n'.encode()


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
    assert not {"cookie", "x-forwarded-for", "mirbad-model", "mirbad-generation"} & set(seen.headers)
    assert SECRET not in str(seen.headers)


def test_a_stream_is_byte_exact_though_split_inside_characters_and_events(fleet):
    text = delta("café") + b": comment\r\n\r\n" + delta("né") + DONE
    cuts = [3, text.index("é".encode()) + 1, text.index("é".encode()) + 10, len(text) - 20, len(text) - 1]

    async def script(seen):
        await seen.head("Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            await seen.chunk(text[start:end])
            await asyncio.sleep(0.005)
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
    [({}, False), ({"stream_options": {"include_usage": True}}, True), ({"stream_options": {}}, True)],
)
def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(fleet, asked, shown):
    async def script(seen):
        await seen.events(delta("a"), USAGE + DONE)

    fleet.engine.script = script
    before = dict(fleet.figures.tokens)
    _, data = ask(fleet, STREAM | asked)
    assert data == delta("a") + (USAGE if shown else b"") + DONE
    sent = fleet.engine.seen[-1].json["stream_options"]
    assert sent == (asked.get("stream_options", {"include_usage": True}))
    assert fleet.figures.tokens["m", "completion"] - before.get(("m", "completion"), 0) == 7
    assert fleet.figures.tokens["m", "prompt"] - before.get(("m", "prompt"), 0) == 5


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


# Refusals, in their order


def test_each_refusal_comes_before_those_behind_it(fleet):
    big, bad, unknown = b"x" * (fleet.options.max_body_bytes + 1), b"nonsense", {"model": "nothing"}
    fleet.table(model(RouteState.DOWN), state=NodeState.OFFLINE)
    assert refused(fleet, big, key=None) == (401, "invalid_api_key")
    assert refused(fleet, big, key=EXPIRED_SECRET) == (401, "invalid_api_key")
    assert refused(fleet, bad, key="ssk_wrong") == (401, "invalid_api_key")
    fleet.gateway.options = replace(fleet.options, max_in_flight=0)
    try:
        assert refused(fleet, big) == (413, "payload_too_large")
        assert refused(fleet, iter([big])) == (413, "payload_too_large")  # in chunks
        assert refused(fleet, bad) == (503, "server_busy")
        assert refused(fleet, iter([bad])) == (503, "server_busy")
        assert refused(fleet, None, "/v1/models", method="GET") == (503, "server_busy")
    finally:
        fleet.gateway.options = fleet.options
    assert refused(fleet, bad) == (400, "invalid_json")
    assert refused(fleet, b"") == (400, "invalid_json")
    assert refused(fleet, {"model": 1}) == (400, "invalid_request")
    assert refused(fleet, unknown) == (404, "model_not_found")
    assert refused(fleet, {"model": "m"}, key=NARROW_SECRET) == (404, "model_not_found")
    assert refused(fleet, {"model": "m"}, "/v1/nothing") == (404, "unknown_url")
    assert refused(fleet, {"model": "m"}) == (503, "node_offline")
    fleet.table(model(RouteState.DOWN), state=NodeState.INCOMPATIBLE)
    assert refused(fleet, {"model": "m"}) == (503, "node_incompatible")
    fleet.table(model(RouteState.DOWN), state=NodeState.PENDING_TAKEOVER)
    assert refused(fleet, {"model": "m"}) == (503, "node_pending_takeover")
    fleet.table(model(RouteState.DOWN))
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    fleet.table(model(routes=()))
    assert refused(fleet, {"model": "m"}) == (503, "model_not_placed")
    fleet.table(version=-1)
    assert refused(fleet, {"model": "m"}) == (503, "server_busy")
    assert fleet.engine.seen == []


def test_a_window_over_everything_comes_before_the_key_and_one_over_a_model_behind_404(fleet):
    window = refusals.maintenance("A benchmark runs; paused until ~10:00 UTC.", 5)
    fleet.table(closed=window)
    assert refused(fleet, b"nonsense", key=None) == (503, "maintenance")
    assert refused(fleet, None, "/v1/models", method="GET") == (503, "maintenance")
    fleet.table(paused={"m": window}, state=NodeState.OFFLINE)
    assert refused(fleet, b"nonsense", key=None) == (401, "invalid_api_key")
    assert refused(fleet, {"model": "nothing"}) == (404, "model_not_found")
    assert refused(fleet, {"model": "m"}) == (503, "maintenance")


def test_a_body_that_does_not_come_on_gives_its_place_back(fleet, monkeypatch):
    monkeypatch.setattr(visit, "BODY_IDLE_SECONDS", 0.2)
    with Raw(fleet) as client:
        client.head("Content-Length: 1000")
        client.socket.sendall(b"{")
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 408 ")
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0, 2)


def test_nothing_stays_in_flight_after_refusals(fleet):
    for body in (b"nonsense", {"model": "nothing"}, {"model": "m"}):
        ask(fleet, body)
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0 and not fleet.gateway.exchanges.flight, 2)
    assert not any(fleet.figures.in_flight.values())


def test_two_hundred_megabytes_are_refused_without_being_read(fleet):
    size = 200 * 1024 * 1024
    for header, chunked in ((f"Content-Length: {size}", False), ("Transfer-Encoding: chunked", True)):
        sent, piece = 0, b"x" * 65536
        began = time.monotonic()
        with Raw(fleet) as client:
            client.head(header)
            try:
                while sent < size:
                    client.socket.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
                    sent += len(piece)
            except (ConnectionError, TimeoutError):
                pass
            answer = client.read_until(b"}}")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"payload_too_large" in answer
        assert sent < size / 4
        assert time.monotonic() - began < 5


def test_a_client_that_asks_before_it_sends_is_not_told_to_go_on(fleet):
    with Raw(fleet) as client:
        client.head("Content-Length: 209715200", "Expect: 100-continue")
        assert client.read_all().startswith(b"HTTP/1.1 413 ")


def test_a_connection_serves_on_after_a_refusal(fleet):
    with Raw(fleet) as client:
        client.post({"model": "nothing"})
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 404 ")
        client.post({"model": "m"})
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 200 ")


def test_models_are_listed_and_looked_up(fleet):
    response, data = ask(fleet, None, "/v1/models", method="GET")
    assert response.status == 200
    assert [m["id"] for m in json.loads(data)["data"]] == ["m", "org/m"]
    response, data = ask(fleet, None, "/v1/models/org/m", method="GET")
    assert json.loads(data) == {"id": "org/m", "object": "model", "created": 1700000000, "owned_by": "mirbad"}
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


def test_a_replica_that_does_not_take_the_request_is_passed_over(fleet):
    gone = Route("p0", "m", "n1", 1, RouteState.READY)
    fleet.table(model(routes=(gone, *model().routes)))
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert len(fleet.engine.seen) == 1


def test_many_streams_at_once_do_not_mix_and_leave_nothing_behind(fleet):
    async def script(seen):
        mark = seen.json["messages"][0]["content"]
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for number in range(30):
            event = delta(f"{mark} é {number}")
            await seen.chunk(event[:7])
            await asyncio.sleep(0.002)
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
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0 and not fleet.gateway.exchanges.flight, 3)
    assert fleet.wait_for(lambda: all(opened == idle for opened, idle in fleet.gateway.pools.counts().values()), 2)


# A client that leaves


def leave(fleet, script, read):
    """Ask, `read` what the case waits for, leave; seconds until the engine knew."""
    fleet.engine.script = script
    client = Raw(fleet)
    client.post(STREAM)
    assert fleet.wait_for(lambda: fleet.engine.seen, 5)
    read(client)
    seen = fleet.engine.seen[-1]
    assert not seen.left.is_set()
    before = fleet.figures.disconnects["m"]
    client.socket.close()
    began = time.monotonic()
    assert fleet.wait_for(seen.left.is_set, 2)
    took = time.monotonic() - began
    assert fleet.wait_for(lambda: fleet.figures.disconnects["m"] == before + 1, 1)
    assert not fleet.gateway.exchanges.flight
    return took


def test_a_client_that_leaves_before_the_first_byte_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.left.wait()

    assert leave(fleet, script, lambda client: None) < 1


def test_a_client_that_leaves_amid_a_stream_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        while not seen.left.is_set():
            await seen.chunk(delta("x"))
            await asyncio.sleep(0.02)

    assert leave(fleet, script, lambda client: client.read_until(b"data:")) < 1


def test_a_client_that_leaves_amid_a_silent_stream_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("x"))
        await seen.left.wait()

    assert leave(fleet, script, lambda client: client.read_until(b"data:")) < 1


def test_a_client_that_leaves_amid_a_plain_answer_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: application/json", "Content-Length: 1000")
        await seen.write(b'{"choices":')
        await seen.left.wait()

    assert leave(fleet, script, lambda client: client.read_until(b"choices")) < 1


def test_a_client_that_leaves_while_it_sends_costs_nothing(fleet):
    with Raw(fleet) as client:
        client.head("Content-Length: 1000")
        client.socket.sendall(b"{")
        assert fleet.wait_for(lambda: fleet.gateway.in_flight == 1, 2)
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0, 2)
    assert fleet.engine.seen == []


def test_a_reader_that_does_not_read_stops_the_engine_and_memory_does_not_grow(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        while not seen.left.is_set():
            await seen.chunk(delta("x" * 50_000))

    fleet.engine.script = script
    with Raw(fleet, receive_buffer=65536) as client:
        client.post(STREAM)
        client.read_until(b"data:")
        seen = fleet.engine.seen[-1]
        memory = psutil.Process().memory_info().rss
        last = -1
        deadline = time.monotonic() + 10
        while seen.sent != last and time.monotonic() < deadline:
            last = seen.sent
            time.sleep(0.3)
        assert seen.sent == last  # everything on the way is full, and nothing more is taken
        # The kernel's buffers of three connections hold most of it; the processes hold little.
        assert psutil.Process().memory_info().rss - memory < 16 * 1024 * 1024
        read = 0
        while read < 2 * last:
            read += len(client.socket.recv(1 << 20))
        assert seen.sent > last


# An engine or a node that fails


def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    fleet.engine.script = script
    response, data = ask(fleet, STREAM)
    assert response.status == 200
    assert data.startswith(delta("a"))
    last = data.removeprefix(delta("a"))
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in data


def test_a_plain_answer_that_breaks_is_seen_to_be_broken(fleet):
    async def script(seen):
        await seen.head("Content-Type: application/json", "Content-Length: 1000")
        await seen.write(b'{"choices":')
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m"})
        answer = client.read_all()
    assert answer.endswith(b'{"choices":')


def test_an_engine_that_closes_without_an_answer_is_502(fleet):
    async def script(seen):
        seen.writer.transport.abort()

    fleet.engine.script = script
    assert refused(fleet, {"model": "m"}) == (502, "upstream_error")


def test_an_engine_that_does_not_listen_is_502(fleet):
    fleet.instances.port = 9
    assert refused(fleet, {"model": "m"}) == (502, "upstream_error")


def test_an_engine_that_is_silent_for_too_long_is_504(fleet):
    async def script(seen):
        await seen.left.wait()

    fleet.engine.script = script
    fleet.table(model(first_byte_seconds=0.2))
    assert refused(fleet, {"model": "m"}) == (504, "upstream_timeout")
    assert fleet.wait_for(fleet.engine.seen[-1].left.is_set, 1)


def test_a_stream_that_falls_silent_ends_with_an_error_event(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await seen.left.wait()

    fleet.engine.script = script
    fleet.table(model(idle_seconds=0.2))
    _, data = ask(fleet, STREAM)
    assert b"upstream_timeout" in data
    assert b"[DONE]" not in data


def test_an_instance_of_another_generation_or_one_that_is_not_ready_gets_no_request(fleet):
    fleet.instances.generation = 2
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    fleet.instances.generation, fleet.instances.ready = 1, False
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    assert fleet.engine.seen == []


def test_a_node_that_is_gone_is_503_and_one_that_is_back_serves_at_once(fleet):
    fleet.run(fleet.node.deafen())
    try:
        assert refused(fleet, {"model": "m"}) == (503, "node_offline")
    finally:
        fleet.run(fleet.node.listen())
    assert ask(fleet, {"model": "m"})[0].status == 200


def test_a_kept_connection_that_went_stale_is_replaced_without_a_word(fleet):
    assert ask(fleet, {"model": "m"})[0].status == 200
    pool = fleet.gateway.pools.of(fleet.endpoint())
    assert fleet.wait_for(lambda: pool.idle_count >= 1, 2)

    async def cut_at_the_next_request():
        connection = pool._idle[-1]
        begin = connection.begin

        def begin_on_a_dead_line(head, body):
            # The agent closed it, and this side has not heard of it yet: what is written goes nowhere.
            connection._transport.abort()
            connection._transport = FakeTransport()
            begin(head, body)
            connection.connection_lost(None)

        connection.begin = begin_on_a_dead_line

    fleet.run(cut_at_the_next_request())
    before = fleet.figures.retries["n1"]
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert fleet.figures.retries["n1"] == before + 1
    assert len(fleet.engine.seen) == 2


def test_connections_end_when_a_node_is_no_longer_trusted_streams_too(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await seen.left.wait()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        client.read_until(b"data:")
        fleet.table(nodes={}, endpoints={})
        assert b"upstream_error" in client.read_until(b"0\r\n\r\n")
    assert fleet.wait_for(fleet.engine.seen[-1].left.is_set, 1)
    assert refused(fleet, {"model": "m"}) == (503, "node_offline")


def test_idle_connections_are_kept_warm(fleet):
    pool = fleet.gateway.pools.of(fleet.endpoint())
    assert fleet.wait_for(lambda: pool.idle_count >= 4, 5)


# Waiting for a model that starts


def test_a_model_that_starts_is_waited_for_when_it_allows_that(fleet):
    fleet.table(model(RouteState.COMING, wait_seconds=5.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 1, 2)
        fleet.table(model(RouteState.COMING, wait_seconds=5.0))
        assert fleet.figures.waiting["m"] == 1
        fleet.table(model(wait_seconds=5.0))
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 200 ")
    assert fleet.figures.waiting["m"] == 0


def test_waiting_ends_with_the_limit_of_the_model_or_with_its_failure(fleet):
    fleet.table(model(RouteState.COMING, wait_seconds=0.2))
    began = time.monotonic()
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    assert 0.2 <= time.monotonic() - began < 2
    fleet.table(model(RouteState.COMING, wait_seconds=30.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 1, 2)
        fleet.table(model(RouteState.DOWN, wait_seconds=30.0))
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 503 ")


def test_a_client_that_leaves_while_it_waits_is_forgotten(fleet):
    fleet.table(model(RouteState.COMING, wait_seconds=30.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 1, 2)
    assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 0, 1)


# The client that most people use


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
