"""Requests that are refused: in their order, with their codes, and nothing stays behind."""

import time
from dataclasses import replace

import pytest

from models_app.gateway import errors
from models_app.gateway.arrival import BodyPace
from models_app.gateway.table import NodeState, RouteState
from tests.gateway.downstream import Raw, ask, refused
from tests.gateway.fleet import EXPIRED_SECRET, NARROW_SECRET, model

pytestmark = pytest.mark.e2e


def test_each_refusal_comes_before_those_behind_it(fleet):
    big, bad, unknown = b"x" * (fleet.options.max_body_bytes + 1), b"nonsense", {"model": "nothing"}
    fleet.table(model(RouteState.DOWN), state=NodeState.OFFLINE)
    assert refused(fleet, big, key=None) == (401, "invalid_api_key")
    assert refused(fleet, big, key=EXPIRED_SECRET) == (401, "invalid_api_key")
    assert refused(fleet, bad, key="ssk_wrong") == (401, "invalid_api_key")
    fleet.gateway.places.total = 0
    try:
        assert refused(fleet, big) == (413, "payload_too_large")
        assert refused(fleet, iter([big])) == (413, "payload_too_large")  # in chunks
        assert refused(fleet, bad) == (503, "server_busy")
        assert refused(fleet, iter([bad])) == (503, "server_busy")
        assert refused(fleet, None, "/v1/models", method="GET") == (503, "server_busy")
    finally:
        fleet.gateway.places.total = fleet.options.max_in_flight
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
    window = errors.maintenance("A benchmark runs; paused until ~10:00 UTC.", 5)
    fleet.table(closed=window)
    assert refused(fleet, b"nonsense", key=None) == (503, "maintenance")
    assert refused(fleet, None, "/v1/models", method="GET") == (503, "maintenance")
    fleet.table(paused={"m": window}, state=NodeState.OFFLINE)
    assert refused(fleet, b"nonsense", key=None) == (401, "invalid_api_key")
    assert refused(fleet, {"model": "nothing"}) == (404, "model_not_found")
    assert refused(fleet, {"model": "m"}) == (503, "maintenance")


def test_a_body_that_does_not_come_on_gives_its_place_back(fleet, monkeypatch):
    monkeypatch.setattr(fleet.gateway, "options", replace(fleet.options, pace=BodyPace(idle_seconds=0.2)))
    with Raw(fleet) as client:
        client.head("Content-Length: 1000")
        client.socket.sendall(b"{")
        assert client.read_until(b"}}").startswith(b"HTTP/1.1 408 ")
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0, 2)


def test_nothing_stays_in_flight_after_refusals(fleet):
    for body in (b"nonsense", {"model": "nothing"}, {"model": "m"}):
        ask(fleet, body)
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0 and not fleet.gateway.upstream.in_flight, 2)
    assert not any(fleet.metrics.in_flight.values())


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
