"""The limits of keys, by a clock made by hand; and as clients meet them."""

import pytest

from models_app.gateway.limits import Limiter
from models_app.gateway.refusals import Refusal
from models_app.gateway.table import Key
from models_app.keys import digest
from tests.gateway.client import Raw, ask, refused
from tests.gateway.fleet import SECRET


def key(**limits):
    return Key(1, "k", None, None, **limits)


def refusal_of(limiter, given, now):
    with pytest.raises(Refusal) as refused:
        limiter.enter(given, now)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    return refused.value.retry_after


@pytest.mark.unit
def test_a_key_without_limits_is_not_counted():
    assert not Limiter().enter(key(), 0)


@pytest.mark.unit
def test_requests_a_minute_fill_up_evenly_and_a_refusal_uses_none():
    limiter, given = Limiter(), key(requests_per_minute=3)
    for _ in range(3):
        assert limiter.enter(given, 100)
        limiter.leave(given, 0)
    assert refusal_of(limiter, given, 100) == 20
    assert refusal_of(limiter, given, 119) == 1
    assert limiter.enter(given, 120.1)
    assert refusal_of(limiter, given, 121) == 19
    for _ in range(3):
        limiter.enter(given, 10_000)
    refusal_of(limiter, given, 10_000)


@pytest.mark.unit
def test_tokens_are_counted_when_they_are_known_and_debt_is_waited_out():
    limiter, given = Limiter(), key(tokens_per_minute=60)
    assert limiter.enter(given, 0)
    limiter.leave(given, 90)
    assert refusal_of(limiter, given, 0) == 31
    refusal_of(limiter, given, 30)
    assert limiter.enter(given, 31.5)


@pytest.mark.unit
def test_requests_at_a_time_come_back_when_they_end():
    limiter, given = Limiter(), key(max_parallel=2)
    limiter.enter(given, 0)
    limiter.enter(given, 0)
    assert refusal_of(limiter, given, 0) == 1
    limiter.leave(given, 0)
    assert limiter.enter(given, 0)


@pytest.mark.unit
def test_a_changed_limit_holds_from_the_next_request_on():
    limiter = Limiter()
    limiter.enter(key(requests_per_minute=100), 0)
    limiter.enter(key(requests_per_minute=1), 0)
    refusal_of(limiter, key(requests_per_minute=1), 0)
    assert limiter.enter(key(requests_per_minute=100), 1)


def limited(fleet, **limits):
    fleet.table(keys={digest(SECRET): Key(91, "limited", None, None, **limits)})


@pytest.mark.e2e
def test_a_client_over_its_limit_is_told_when_to_come_back_and_costs_the_engine_nothing(fleet):
    limited(fleet, requests_per_minute=2)
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")
    assert refused(fleet, {"model": "nothing"}) == (404, "model_not_found")  # 404 stands before it
    assert len(fleet.engine.seen) == 2


@pytest.mark.e2e
def test_a_stream_that_ends_or_is_left_gives_its_place_back(fleet):
    async def silent(seen):
        await seen.left.wait()

    fleet.engine.script = silent
    fleet.table(keys={digest(SECRET): Key(92, "parallel", None, None, max_parallel=1)})
    with Raw(fleet) as client:
        client.post({"model": "m", "stream": True})
        assert fleet.wait_for(lambda: len(fleet.engine.seen) == 1, 5)
        assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0, 5)
    from tests.gateway.engine import hello

    fleet.engine.script = hello
    assert ask(fleet, {"model": "m"})[0].status == 200
