"""The choice of a replica: fewest in flight, equals in turn, affinity, ejection and probes."""

from functools import partial

import pytest

from models_app.gateway import balance
from models_app.gateway.balance import Balancer, prompt_prefix
from models_app.gateway.table import RouteEntry, RouteState

ROUTES = [RouteEntry(f"p{n}", "m", f"n{n}", 1, RouteState.READY) for n in (1, 2, 3)]

pytestmark = pytest.mark.unit


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def balancer(clock):
    return Balancer(clock)


def picked(balancer, routes=ROUTES, affinity=None):
    return balancer.pick(routes, affinity).placement_id


def enter(balancer, **counts):
    for placement_id, count in counts.items():
        for _ in range(count):
            balancer.enter(placement_id)


def eject(balancer, placement_id="p1"):
    for _ in range(balance.FAILURES_TO_EJECT):
        balancer.failed(placement_id)


def test_the_replica_with_the_fewest_in_flight_takes_the_request(balancer):
    enter(balancer, p1=2, p2=1, p3=2)
    assert [picked(balancer) for _ in range(6)] == ["p2"] * 6
    balancer.leave("p1")
    balancer.leave("p1")
    assert [picked(balancer) for _ in range(6)] == ["p1"] * 6
    assert balancer.in_flight == {"p2": 1, "p3": 2}


def test_equals_take_turns(balancer):
    assert [picked(balancer) for _ in range(7)] == ["p2", "p3", "p1", "p2", "p3", "p1", "p2"]
    balancer.enter("p3")
    assert {picked(balancer) for _ in range(4)} == {"p1", "p2"}


def test_a_single_replica_is_picked_whatever_its_state(balancer):
    eject(balancer)
    enter(balancer, p1=5)
    assert picked(balancer, ROUTES[:1]) == "p1"
    assert picked(balancer, ROUTES[:1], b"key") == "p1"


def test_of_two_replicas_the_ejected_one_gets_nothing(balancer):
    eject(balancer)
    enter(balancer, p2=9)
    assert picked(balancer, ROUTES[:2]) == "p2"


def test_three_failures_in_a_row_eject_a_replica_and_two_do_not(balancer):
    balancer.failed("p1")
    balancer.failed("p1")
    assert balancer.ejected == frozenset()
    balancer.failed("p1")
    assert balancer.ejected == {"p1"}
    assert {picked(balancer) for _ in range(10)} == {"p2", "p3"}


def test_a_success_between_failures_keeps_a_replica_in(balancer):
    balancer.failed("p2")
    for _ in range(20):
        balancer.failed("p1")
        balancer.failed("p1")
        balancer.succeeded("p1")
        balancer.succeeded("p3")  # has no failures
    assert balancer.ejected == frozenset()
    balancer.failed("p2")
    balancer.failed("p2")
    assert balancer.ejected == {"p2"}  # the successes of others change nothing


def test_an_ejected_replica_gets_one_probe_at_a_time_from_the_end_of_its_pause(balancer, clock):
    eject(balancer)
    enter(balancer, p2=3, p3=3)
    clock.now += balance.EJECT_SECONDS - 0.01
    assert picked(balancer) != "p1"
    clock.now += 0.01
    assert picked(balancer) == "p1"
    balancer.enter("p1")
    assert picked(balancer) != "p1"  # its probe is in flight
    balancer.leave("p1")  # without a result, as when the client disconnects
    assert picked(balancer) == "p1"
    balancer.enter("p1")
    balancer.succeeded("p1")
    balancer.leave("p1")
    assert balancer.ejected == frozenset()
    balancer.enter("p1")
    assert picked(balancer) == "p1"  # any number again, not one at a time


def test_the_end_of_another_request_starts_no_second_probe(balancer, clock):
    old = balancer.enter("p1")
    eject(balancer)
    enter(balancer, p2=3, p3=3)
    clock.now += balance.EJECT_SECONDS
    probe = balancer.enter("p1")
    assert (old, probe) == (False, True)
    balancer.leave("p1", probe=old)  # it began before the ejection
    assert picked(balancer) != "p1"
    late = balancer.enter("p1")  # picked because no other replica was left
    balancer.leave("p1", probe=late)
    assert (late, picked(balancer) != "p1") == (False, True)
    balancer.leave("p1", probe=probe)
    assert picked(balancer) == "p1"


def test_requests_of_a_replica_in_good_health_are_no_probes(balancer):
    balancer.failed("p1")
    balancer.enter("p1")
    enter(balancer, p2=3, p3=3)
    assert picked(balancer) == "p1"


def seconds_until_probe(balancer, clock):
    """The seconds until the ejected p1 is picked beside a busy p2."""
    enter(balancer, p2=1)
    seconds = 0.0
    while picked(balancer, ROUTES[:2]) != "p1":
        seconds += 0.5
        clock.now += 0.5
    balancer.leave("p2")
    return seconds


def test_each_failed_probe_doubles_the_pause_up_to_a_limit(balancer, clock):
    eject(balancer)
    pauses = []
    for _ in range(14):
        pauses.append(seconds_until_probe(balancer, clock))
        balancer.enter("p1")
        balancer.failed("p1")
        balancer.leave("p1")
    assert pauses == [5, 10, 20, 40, *[60] * 10]


def test_after_a_success_ejection_starts_anew(balancer, clock):
    eject(balancer)
    clock.now += balance.EJECT_SECONDS
    eject(balancer)  # the first failed probe and two more
    balancer.succeeded("p1")
    balancer.failed("p1")
    balancer.failed("p1")
    assert balancer.ejected == frozenset()
    balancer.failed("p1")
    assert seconds_until_probe(balancer, clock) == balance.EJECT_SECONDS


def test_when_all_are_ejected_the_least_busy_one_is_tried(balancer):
    for route in ROUTES:
        eject(balancer, route.placement_id)
    enter(balancer, p1=2, p2=1, p3=2)
    assert picked(balancer) == "p2"


def test_placements_that_are_gone_are_forgotten_and_others_are_not(balancer):
    eject(balancer, "p1")
    eject(balancer, "p2")
    balancer.keep_only(frozenset({"p2", "p3"}))
    assert balancer.ejected == {"p2"}
    assert {picked(balancer, ROUTES[:2]) for _ in range(4)} == {"p1"}


def test_an_affinity_key_has_one_home_and_keys_spread_over_all(balancer):
    homes = [picked(balancer, affinity=b"session-%d" % n) for n in range(300)]
    assert [picked(balancer, affinity=b"session-%d" % n) for n in range(300)] == homes
    assert all(70 < homes.count(f"p{n}") < 130 for n in (1, 2, 3))
    # The order of routes, which a new table may change, moves no key.
    assert [picked(balancer, ROUTES[::-1], b"session-%d" % n) for n in range(300)] == homes


def test_the_home_of_a_key_is_the_same_in_every_process_and_version(balancer):
    # Fixed values: several web processes, and this one after an upgrade, must agree.
    homes = [picked(balancer, affinity=b"session-%d" % n) for n in range(8)]
    assert homes == ["p1", "p1", "p2", "p3", "p3", "p3", "p1", "p2"]


def test_a_replica_that_is_added_moves_only_the_keys_that_it_wins(balancer):
    keys = [b"%d" % n for n in range(100)]
    before = [picked(balancer, ROUTES[:2], key) for key in keys]
    after = [picked(balancer, affinity=key) for key in keys]
    assert all(new in (old, "p3") for old, new in zip(before, after, strict=True))


def test_affinity_yields_to_load_at_one_and_a_quarter_of_the_mean_plus_one(balancer):
    pick = partial(picked, balancer, affinity=b"session-1")
    home = pick()
    others = [route.placement_id for route in ROUTES if route.placement_id != home]
    balancer.enter(home)  # 1 < 1.25 * 1/3 + 1
    assert pick() == home
    balancer.enter(home)  # 2 >= 1.25 * 2/3 + 1
    second = pick()
    assert second in others
    third = next(name for name in others if name != second)
    enter(balancer, **{second: 2})  # both have 2 < 1.25 * 4/3 + 1
    assert pick() == home
    enter(balancer, **{home: 2})  # 4 >= 1.25 * 6/3 + 1, and 2 is below
    assert pick() == second
    enter(balancer, **{second: 2})  # 4 < 1.25 * 8/3 + 1
    assert pick() == home
    enter(balancer, **{home: 5, second: 5})  # 9 >= 1.25 * 18/3 + 1
    assert pick() == third


def test_a_replica_exactly_at_the_bound_is_passed_over(balancer):
    two = ROUTES[:2]
    home = picked(balancer, two, b"key")
    other = next(route.placement_id for route in two if route.placement_id != home)
    enter(balancer, **{home: 6, other: 2})  # the mean is 4, the bound 6
    assert picked(balancer, two, b"key") == other
    balancer.leave(home)
    assert picked(balancer, two, b"key") == home


def test_load_of_replicas_that_cannot_take_the_request_does_not_count(balancer):
    two = ROUTES[:2]
    home = picked(balancer, two, b"key")
    enter(balancer, p3=30)
    enter(balancer, **{home: 3})  # 3 >= 1.25 * 3/2 + 1; with p3 the mean would allow it
    assert picked(balancer, two, b"key") != home


def test_affinity_passes_over_an_ejected_home(balancer):
    home = picked(balancer, affinity=b"key")
    eject(balancer, home)
    second = picked(balancer, affinity=b"key")
    assert second != home
    assert {picked(balancer, affinity=b"key") for _ in range(5)} == {second}
    balancer.succeeded(home)
    assert picked(balancer, affinity=b"key") == home


def test_the_prefix_of_a_prompt_ignores_members_before_it():
    messages = b'"messages": [{"role": "system", "content": "' + b"x" * 600
    one = b'{"model": "m", ' + messages + b'one"}]}'
    two = b'{"stream": true, "model": "m", ' + messages + b'two"}]}'
    assert prompt_prefix(one) == prompt_prefix(two) == messages[:512]


@pytest.mark.parametrize(
    ("body", "prefix"),
    [
        (b'{"model": "m", "prompt": "hi"}', b'"prompt": "hi"}'),
        (b'{"model": "m", "input": "hi"}', b'"input": "hi"}'),
        (b'"messages": []', b'"messages": []'),
        (b'{"input": "a", "prompt": "b", "messages": [1]}', b'"messages": [1]}'),
        (b'{"input": "a", "prompt": "b"}', b'"prompt": "b"}'),
        (b'{"messages": [{"x": "the word "messages" again"}]}', b'"messages": [{"x": "the word "messages" again"}]}'),
        (b'{"model": "m"}', None),
        (b"{" + b" " * (64 * 1024 - 11) + b'"messages": [1]}', b'"messages": [1]}'),
        (b"{" + b" " * (64 * 1024 - 10) + b'"messages": [1]}', None),
    ],
)
def test_the_prefix_starts_at_the_messages_or_the_prompt_if_near_the_start(body, prefix):
    assert prompt_prefix(body) == prefix
