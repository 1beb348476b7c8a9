"""Bodies that arrive slowly, or that fill the memory: refused in time, and places and bytes are given back."""

import json
from dataclasses import replace

import pytest

from models_app.gateway import body as bodies
from models_app.gateway.arrival import BodyPace
from models_app.gateway.errors import GatewayError
from models_app.gateway.limits import BodyBudget, RequestPlaces
from models_app.gateway.table import KeyEntry
from models_app.keys import digest
from tests.gateway.downstream import Raw, ask, refused
from tests.gateway.fleet import SECRET
from tests.waiting import until_async

OTHER_SECRET = "ssk_" + "d" * 43


@pytest.mark.unit
@pytest.mark.parametrize(
    ("waited", "received", "patience"),
    [
        (0, 0, 20),
        (19, 0, 1),
        (40, 1, -20 + 1 / 4096),
        (0, 4096, 21),
        (0, 64 * 1024 * 1024, 30),  # the longest pause
        (295, 64 * 1024 * 1024, 5),  # the total
        (25, 4096 * 10, 5),
    ],
)
def test_each_byte_buys_time_up_to_a_total(waited, received, patience):
    assert BodyPace().patience(waited, received) == pytest.approx(patience)


def refusal(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    assert caught.value.retry_after >= 1
    return caught.value.status, caught.value.code


@pytest.mark.unit
def test_one_key_leaves_the_last_eighth_of_the_places_to_others():
    places = RequestPlaces(16)
    for _ in range(14):
        places.enter(1)
    assert refusal(places.enter, 1) == (503, "server_busy")
    places.enter(2)
    places.enter(3)
    assert refusal(places.enter, 4) == (503, "server_busy")
    places.leave(1)
    places.leave(1)
    assert refusal(places.enter, 1) == (503, "server_busy")
    places.enter(4)
    assert places.taken == 15


@pytest.mark.unit
@pytest.mark.parametrize("total", [1, 2, 7])
def test_few_places_are_all_for_one_key(total):
    places = RequestPlaces(total)
    for _ in range(total):
        places.enter(1)
    assert refusal(places.enter, 2) == (503, "server_busy")
    for _ in range(total):
        places.leave(1)
    places.enter(2)
    assert places.taken == 1


@pytest.mark.unit
def test_bytes_are_limited_by_key_and_in_all_and_a_refusal_takes_none():
    budget = BodyBudget(100, 60)
    budget.take(1, 60)
    assert refusal(budget.take, 1, 1) == (429, "rate_limit_exceeded")
    assert refusal(budget.take, 2, 41) == (503, "server_busy")
    budget.take(2, 40)
    budget.give_back(1, 60)
    budget.take(1, 60)
    assert budget.held == 100


def limited(fleet, **limits):
    fleet.table(
        keys={
            digest(SECRET): KeyEntry(71, "slow", None, None, **limits),
            digest(OTHER_SECRET): KeyEntry(72, "other", None, None),
        }
    )


@pytest.fixture
def pace(each_protocol, monkeypatch):
    def choose(**changes):
        monkeypatch.setattr(each_protocol.gateway, "options", replace(each_protocol.options, pace=BodyPace(**changes)))

    return choose


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["json", "chunked", "form"])
@pytest.mark.parametrize("limit", ["idle_seconds", "first_seconds", "total_seconds"])
def test_a_body_that_is_too_slow_is_refused_and_gives_its_place_back(each_protocol, pace, limit, kind):
    pace(**{limit: 0.3})
    head = {
        "json": ["Content-Length: 100000"],
        "chunked": ["Transfer-Encoding: chunked"],
        "form": ["Content-Length: 100000", "Content-Type: multipart/form-data; boundary=b"],
    }
    with Raw(each_protocol) as client:
        client.head(*head[kind], path="/v1/audio/transcriptions" if kind == "form" else "/v1/chat/completions")
        client.socket.sendall(b"1\r\n{\r\n" if kind == "chunked" else b"--b\r\n" if kind == "form" else b"{")
        answer = client.read_until(b"}}")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
    assert each_protocol.wait_for(lambda: each_protocol.gateway.places.taken == 0, 2)


@pytest.mark.e2e
def test_a_key_with_one_request_at_a_time_holds_one_place_however_slowly_it_sends(each_protocol):
    limited(each_protocol, max_parallel=1)
    with Raw(each_protocol) as slow:
        slow.head("Content-Length: 100000")
        slow.socket.sendall(b"{")
        assert each_protocol.wait_for(lambda: each_protocol.gateway.places.taken == 1, 2)
        for _ in range(3):
            assert refused(each_protocol, {"model": "m"}) == (429, "rate_limit_exceeded")
        assert ask(each_protocol, {"model": "m"}, key=OTHER_SECRET)[0].status == 200
        assert each_protocol.gateway.places.taken == 1
    assert each_protocol.wait_for(lambda: each_protocol.gateway.places.taken == 0, 2)
    assert ask(each_protocol, {"model": "m"})[0].status == 200


@pytest.mark.e2e
def test_the_bytes_of_large_bodies_are_counted_while_they_wait_and_given_back(each_protocol, monkeypatch):
    limited(each_protocol)
    size = 2 * bodies.WHOLE_PARSE_BYTES
    budget = BodyBudget(2 * size, size)
    monkeypatch.setattr(each_protocol.gateway, "budget", budget)
    with Raw(each_protocol) as one:
        one.head(f"Content-Length: {size}")
        one.socket.sendall(b"{" * (size - 1))
        assert each_protocol.wait_for(lambda: budget.held == size - 1, 2)
        body = json.dumps({"model": "m", "filler": "x" * size}).encode()[:size]
        assert refused(each_protocol, body) == (429, "rate_limit_exceeded")
        whole = json.dumps({"model": "m", "filler": "x" * (size - 100)})
        assert ask(each_protocol, whole.encode(), key=OTHER_SECRET)[0].status == 200
        assert ask(each_protocol, {"model": "m"})[0].status == 200  # a small one always fits
    assert each_protocol.wait_for(lambda: budget.held == 0, 2)


@pytest.mark.e2e
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [bodies.WHOLE_PARSE_BYTES - 100, bodies.WHOLE_PARSE_BYTES + 100, 10_000_000])
def test_a_body_reaches_the_engine_byte_by_byte_and_is_not_kept_during_the_answer(each_protocol, size, stream):
    held = []

    async def script(seen):
        held.append(each_protocol.gateway.budget.held)
        await seen.head("Content-Type: application/json", "Transfer-Encoding: chunked")
        await seen.chunk(b"{")
        await until_async(lambda: each_protocol.gateway.budget.held == 0, "the bytes to be given back", 10)
        await seen.chunk(b"}")
        await seen.end()

    each_protocol.engine.script = script
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "y" * size}]}
    answer, _ = ask(each_protocol, body)
    assert answer.status == 200
    asked = {"stream_options": {"include_usage": True}} if stream else {}
    assert each_protocol.engine.seen[-1].json == {**asked, **body}
    assert (held[0] > 0) is (size > bodies.WHOLE_PARSE_BYTES)
