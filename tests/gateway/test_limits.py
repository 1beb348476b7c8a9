"""The limits of keys, by given times; and as clients meet them."""

import pytest

from models_app.gateway import limits
from models_app.gateway.errors import GatewayError
from models_app.gateway.limits import KeyLimiter
from models_app.gateway.table import KeyEntry
from models_app.keys import digest
from tests.gateway.downstream import Raw, ask, refused
from tests.gateway.fleet import SECRET


def key(number=1, **limits):
    return KeyEntry(number, "k", None, None, **limits)


def refused_for(limiter, given, now):
    """The seconds after which a refused request may be sent again."""
    with pytest.raises(GatewayError) as caught:
        limiter.enter(given, now)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value.retry_after


def fails_with(limiter, given, message):
    with pytest.raises(GatewayError) as caught:
        limiter.enter(given, 0)
    assert caught.value.message == message


@pytest.mark.unit
@pytest.mark.parametrize(
    ("limits", "counted"),
    [
        ({}, False),
        ({"requests_per_minute": 1}, True),
        ({"tokens_per_minute": 1}, True),
        ({"max_parallel": 1}, True),
    ],
)
def test_only_a_key_with_limits_is_counted(limits, counted):
    assert KeyLimiter().enter(key(**limits), 0) is counted


@pytest.mark.unit
def test_the_message_names_the_limit_and_the_time():
    limiter = KeyLimiter()
    limiter.enter(key(1, max_parallel=1), 0)
    fails_with(limiter, key(1, max_parallel=1), "This API key is limited to 1 concurrent requests. Try again in 1 s.")
    limiter.enter(key(2, requests_per_minute=1), 0)
    message = "This API key is limited to 1 requests per minute. Try again in 60 s."
    fails_with(limiter, key(2, requests_per_minute=1), message)
    limiter.enter(key(3, tokens_per_minute=30), 0)
    limiter.leave(key(3), 30)
    message = "This API key is limited to 30 tokens per minute. Try again in 2 s."
    fails_with(limiter, key(3, tokens_per_minute=30), message)


@pytest.mark.unit
def test_requests_per_minute_refill_evenly_and_a_refusal_uses_none():
    limiter, given = KeyLimiter(), key(requests_per_minute=3)
    for _ in range(3):
        assert limiter.enter(given, 100)
        limiter.leave(given, 0)
    assert refused_for(limiter, given, 100) == 20
    assert refused_for(limiter, given, 110) == 10
    assert refused_for(limiter, given, 119) == 1
    assert limiter.enter(given, 120)
    assert refused_for(limiter, given, 121) == 19
    for _ in range(3):
        limiter.enter(given, 10_000)  # never more than a minute's worth
    assert refused_for(limiter, given, 10_000) == 20


@pytest.mark.unit
def test_a_retry_time_is_a_whole_second_and_at_least_one():
    limiter, given = KeyLimiter(), key(requests_per_minute=7)
    for _ in range(7):
        limiter.enter(given, 0)
    assert refused_for(limiter, given, 0) == 9  # 60 / 7 is 8.57
    limiter, given = KeyLimiter(), key(requests_per_minute=600)
    for _ in range(600):
        limiter.enter(given, 0)
    assert refused_for(limiter, given, 0) == 1  # 0.1 s


@pytest.mark.unit
def test_tokens_are_counted_when_they_are_reported_and_a_debt_is_waited_out():
    limiter, given = KeyLimiter(), key(tokens_per_minute=60)
    assert limiter.enter(given, 0)
    limiter.leave(given, 59)
    assert limiter.enter(given, 0)  # one token is left
    limiter.leave(given, 1)
    assert refused_for(limiter, given, 0) == 1  # none is left
    assert limiter.enter(given, 1)
    limiter.leave(given, 31)
    assert refused_for(limiter, given, 1) == 31
    assert refused_for(limiter, given, 21) == 11
    assert refused_for(limiter, given, 31) == 1
    assert limiter.enter(given, 31.5)


@pytest.mark.unit
def test_tokens_per_minute_are_scaled_to_the_limit():
    limiter, given = KeyLimiter(), key(tokens_per_minute=6)
    limiter.enter(given, 0)
    limiter.leave(given, 7)
    assert refused_for(limiter, given, 0) == 20


@pytest.mark.unit
def test_tokens_of_a_key_without_their_limit_are_not_counted():
    limiter = KeyLimiter()
    limiter.enter(key(max_parallel=1), 0)
    limiter.leave(key(max_parallel=1), 1000)
    assert limiter.enter(key(max_parallel=1, tokens_per_minute=1), 0)


@pytest.mark.unit
def test_concurrent_requests_are_freed_when_they_end():
    limiter, given = KeyLimiter(), key(max_parallel=2)
    limiter.enter(given, 0)
    limiter.enter(given, 0)
    assert refused_for(limiter, given, 0) == 1
    limiter.leave(given, 0)
    assert limiter.enter(given, 0)
    assert refused_for(limiter, given, 0) == 1


@pytest.mark.unit
def test_a_request_refused_by_one_limit_uses_nothing_of_the_others():
    limiter, given = KeyLimiter(), key(max_parallel=1, requests_per_minute=2, tokens_per_minute=1)
    limiter.enter(given, 0)
    for _ in range(5):
        refused_for(limiter, given, 0)
    limiter.leave(given, 0)
    assert limiter.enter(given, 0)
    limiter.leave(given, 1)
    assert refused_for(limiter, given, 0) == 60  # tokens come before requests
    assert limiter.enter(given, 60)


@pytest.mark.unit
def test_keys_are_counted_apart():
    limiter = KeyLimiter()
    limiter.enter(key(1, max_parallel=1), 0)
    assert limiter.enter(key(2, max_parallel=1), 0)


@pytest.mark.unit
def test_a_changed_limit_takes_effect_at_the_next_request():
    limiter = KeyLimiter()
    limiter.enter(key(requests_per_minute=100), 0)
    limiter.enter(key(requests_per_minute=1), 0)
    assert refused_for(limiter, key(requests_per_minute=1), 0) == 60
    assert limiter.enter(key(requests_per_minute=100), 1)


@pytest.mark.unit
def test_idle_keys_are_forgotten_when_there_are_too_many_but_never_one_with_an_open_request(monkeypatch):
    monkeypatch.setattr(limits, "_FORGET_AT", 3)
    limiter = KeyLimiter()
    limiter.enter(key(1, requests_per_minute=1), 0)
    limiter.leave(key(1), 0)
    limiter.enter(key(2, requests_per_minute=1), 0)  # stays open
    assert set(limiter._uses) == {1, 2}
    limiter.enter(key(3, requests_per_minute=1), 1)
    limiter.leave(key(3), 0)
    limiter.enter(key(4, requests_per_minute=1), 60)
    assert set(limiter._uses) == {2, 3, 4}
    assert refused_for(limiter, key(3, requests_per_minute=1), 60) == 1
    limiter.leave(key(4), 0)
    limiter.enter(key(5, requests_per_minute=1), 119.5)  # 3 and 4 were last used at 60
    assert set(limiter._uses) == {2, 3, 4, 5}
    limiter.leave(key(5), 0)
    limiter.enter(key(6, requests_per_minute=1), 120)
    assert set(limiter._uses) == {2, 5, 6}


def limited(fleet, **limits):
    fleet.table(keys={digest(SECRET): KeyEntry(91, "limited", None, None, **limits)})


@pytest.mark.e2e
def test_a_client_over_its_limit_is_told_when_to_come_back_and_costs_the_engine_nothing(fleet):
    limited(fleet, requests_per_minute=2)
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")
    assert refused(fleet, {"model": "nothing"}) == (429, "rate_limit_exceeded")  # before the body is read
    assert len(fleet.engine.seen) == 2


@pytest.mark.e2e
def test_a_stream_that_ends_or_is_left_gives_its_place_back(fleet):
    async def silent(seen):
        await seen.left.wait()

    fleet.engine.script = silent
    fleet.table(keys={digest(SECRET): KeyEntry(92, "parallel", None, None, max_parallel=1)})
    with Raw(fleet) as client:
        client.post({"model": "m", "stream": True})
        assert fleet.wait_for(lambda: len(fleet.engine.seen) == 1, 5)
        assert refused(fleet, {"model": "m"}) == (429, "rate_limit_exceeded")
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0, 5)
    from tests.gateway.engine import hello

    fleet.engine.script = hello
    assert ask(fleet, {"model": "m"})[0].status == 200
