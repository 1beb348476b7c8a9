"""Which replica is picked, by hand; and a replica that dies or never answers, with real connections."""

import pytest

from models_app.gateway import balance
from models_app.gateway.balance import Balance, prompt_prefix
from models_app.gateway.table import Route, RouteState

ROUTES = [Route(f"p{n}", "m", f"n{n}", 1, RouteState.READY) for n in (1, 2, 3)]

pytestmark = pytest.mark.unit


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_replica_with_the_least_in_flight_takes_the_request(clock):
    found = Balance(clock)
    for name in ("p1", "p1", "p2", "p3", "p3"):
        found.enter(name)
    assert found.pick(ROUTES).placement_id == "p2"
    found.leave("p1")
    found.leave("p1")
    assert found.pick(ROUTES).placement_id == "p1"
    assert found.flight == {"p2": 1, "p3": 2}


def test_equals_take_turns(clock):
    found = Balance(clock)
    assert {found.pick(ROUTES).placement_id for _ in range(3)} == {"p1", "p2", "p3"}


def test_what_fails_again_and_again_is_left_out_and_then_tried_by_one_at_a_time(clock):
    found = Balance(clock)
    for _ in range(balance.FAILURES_TO_EJECT):
        found.failed("p1")
    assert found.ejected == {"p1"}
    assert all(found.pick(ROUTES).placement_id != "p1" for _ in range(10))
    clock.now = balance.EJECT_SECONDS + 0.1
    for name in ("p2", "p3"):
        found.enter(name)
    assert found.pick(ROUTES).placement_id == "p1"
    found.enter("p1")
    for name in ("p2", "p3"):
        found.enter(name)
    assert found.pick(ROUTES).placement_id != "p1"  # its probe is under way
    found.succeeded("p1")
    found.leave("p1")
    assert found.ejected == frozenset()
    assert found.pick(ROUTES).placement_id == "p1"


def test_a_probe_that_fails_waits_twice_as_long_up_to_a_limit(clock):
    found = Balance(clock)
    for _ in range(balance.FAILURES_TO_EJECT):
        found.failed("p1")
    waited = balance.EJECT_SECONDS
    for _ in range(8):
        clock.now += waited + 0.01
        assert found.pick([ROUTES[0], ROUTES[1]]) or True
        found.enter("p1")
        found.failed("p1")
        found.leave("p1")
        waited = min(waited * 2, balance.EJECT_LONGEST_SECONDS)
        clock.now += waited - 0.02
        assert all(found.pick(ROUTES[:2]).placement_id == "p2" for _ in range(4))
        clock.now -= waited - 0.02


def test_when_all_have_failed_one_is_tried_all_the_same(clock):
    found = Balance(clock)
    for route in ROUTES:
        for _ in range(balance.FAILURES_TO_EJECT):
            found.failed(route.placement_id)
    assert found.pick(ROUTES) in ROUTES


def test_successes_between_failures_keep_a_replica_in(clock):
    found = Balance(clock)
    for _ in range(20):
        found.failed("p1")
        found.succeeded("p1")
    assert found.ejected == frozenset()


def test_the_same_session_goes_to_the_same_replica_until_it_is_overloaded(clock):
    found = Balance(clock)
    home = found.pick(ROUTES, b"session-1").placement_id
    assert {found.pick(ROUTES, b"session-1").placement_id for _ in range(20)} == {home}
    assert len({found.pick(ROUTES, b"%d" % n).placement_id for n in range(50)}) == 3
    found.enter(home)
    found.enter(home)
    assert found.pick(ROUTES, b"session-1").placement_id != home
    without = [route for route in ROUTES if route.placement_id != home]
    assert found.pick(without, b"session-1") in without


def test_a_replica_that_is_gone_is_forgotten(clock):
    found = Balance(clock)
    for _ in range(balance.FAILURES_TO_EJECT):
        found.failed("p1")
    found.keep_only(frozenset({"p2"}))
    assert found.ejected == frozenset()


def test_the_prefix_of_a_prompt_ignores_what_stands_before_it():
    one = b'{"model": "m", "messages": [{"role": "system", "content": "' + b"x" * 600 + b'one"}]}'
    two = b'{"stream": true, "model": "m", "messages": [{"role": "system", "content": "' + b"x" * 600 + b'two"}]}'
    assert prompt_prefix(one) == prompt_prefix(two)
    assert prompt_prefix(b'{"model": "m"}') is None
