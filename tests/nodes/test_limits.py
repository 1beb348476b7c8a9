"""Limits on the requests of strangers."""

import pytest

from nodes.enrollment.limits import WINDOW_SECONDS, EnrollLimiter, peer_group

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def test_one_peer_has_its_tries_a_minute_and_is_told_how_long_to_wait(clock):
    limiter = EnrollLimiter(3, 100, clock)
    assert [limiter.admit("192.0.2.1") for _ in range(3)] == [0.0] * 3
    clock.time += 20
    assert limiter.admit("192.0.2.1") == pytest.approx(40)
    assert limiter.admit("192.0.2.2") == 0
    clock.time += 40
    assert limiter.admit("192.0.2.1") == 0


def test_of_too_many_peers_the_one_that_was_away_longest_is_forgotten(clock, monkeypatch):
    monkeypatch.setattr("nodes.enrollment.limits._PEERS_KEPT", 2)
    limiter = EnrollLimiter(1, 100, clock)
    assert [limiter.admit(peer) for peer in ("a", "b", "c")] == [0.0] * 3
    assert limiter.admit("c") > 0
    assert limiter.admit("b") > 0
    assert limiter.admit("a") == 0, "forgotten, and so counted anew"


def test_the_window_slides(clock):
    limiter = EnrollLimiter(2, 100, clock)
    limiter.admit("a")
    clock.time += 30
    limiter.admit("a")
    clock.time += 31
    assert limiter.admit("a") == 0
    assert limiter.admit("a") == pytest.approx(WINDOW_SECONDS - 31)


def test_all_peers_together_have_a_limit(clock):
    limiter = EnrollLimiter(5, 10, clock)
    admitted = [limiter.admit(f"192.0.2.{n}") for n in range(12)]
    assert admitted[:10] == [0.0] * 10
    assert all(wait == WINDOW_SECONDS for wait in admitted[10:])


def test_a_peer_that_is_refused_does_not_use_up_what_all_share(clock):
    limiter = EnrollLimiter(1, 10, clock)
    for _ in range(500):
        limiter.admit("192.0.2.1")
    assert all(limiter.admit(f"198.51.100.{n}") == 0 for n in range(9))


def test_the_addresses_of_one_ipv6_host_are_one_peer():
    assert peer_group("2001:db8:1:2::1") == peer_group("2001:db8:1:2:ffff::9") != peer_group("2001:db8:1:3::1")
    assert peer_group("::ffff:192.0.2.1") == peer_group("192.0.2.1")
    assert peer_group("fe80::1%eth0") == peer_group("fe80::2")


def test_memory_does_not_grow_with_strangers(clock):
    limiter = EnrollLimiter(5, 10**9, clock)
    for n in range(12_000):
        limiter.admit(f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}")
    assert len(limiter._peers) <= 10_000
