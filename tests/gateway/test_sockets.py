"""Connections by address: counted as one client has them, and only where a client is."""

import pytest

from agent.common.http1.sockets import SocketLimit
from agent.common.http1.upgrade import plain_head

pytestmark = pytest.mark.unit


class Held:
    """A connection that is idle or not."""

    def __init__(self, *, idle=False, used=False):
        self.idle = idle
        self.used = used

    def close_idle(self):
        return self.idle


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
    ],
)
def test_addresses_of_one_client_are_counted_together(first, second, together):
    limit = SocketLimit(1)
    assert limit.enter(first, Held())
    assert limit.enter(second, Held()) is not together


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "", "a socket file"])
def test_proxies_and_peers_without_an_address_have_no_limit(address):
    limit = SocketLimit(1, ("10.0.0.0/8",))
    assert all(limit.enter(address, Held()) for _ in range(5))
    assert not limit._open


def test_an_idle_connection_makes_space_and_one_that_ended_is_forgotten():
    limit = SocketLimit(2)
    busy, idle, third = Held(), Held(idle=True), Held()
    assert limit.enter("192.0.2.1", busy)
    assert limit.enter("192.0.2.1", idle)
    assert limit.enter("192.0.2.1", third)
    assert not limit.enter("192.0.2.1", Held())
    limit.leave("192.0.2.1", idle)  # once more, as its connection ends
    limit.leave("192.0.2.1", busy)
    assert limit.enter("192.0.2.1", Held())
    limit.leave("192.0.2.9", busy)
    assert len(limit._open["192.0.2.1"]) == 2


def test_the_connection_that_is_idle_for_longest_makes_space():
    limit = SocketLimit(2)
    probe, silent, another = Held(idle=True, used=True), Held(idle=True), Held(idle=True)
    assert limit.enter("192.0.2.1", probe)
    assert limit.enter("192.0.2.1", silent)
    assert limit.enter("192.0.2.1", another)
    assert list(limit._open["192.0.2.1"]) == [probe, another]
    assert not probe.used
    probe.used = another.used = True
    assert limit.enter("192.0.2.1", Held())
    assert probe not in limit._open["192.0.2.1"]


def test_a_head_without_its_offer_keeps_all_else():
    headers = [
        (b"Host", b"x"),
        (b"Connection", b"Upgrade, HTTP2-Settings, close"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AAMAAABkAAQ"),
        (b"X-Upgrade", b"kept"),
    ]
    assert plain_head(b"POST", b"/v1/x?a=b", "1.1", headers) == (
        b"POST /v1/x?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Upgrade: kept\r\n\r\n"
    )
    assert plain_head(b"GET", b"/", "1.0", [(b"connection", b"upgrade")]) == b"GET / HTTP/1.0\r\n\r\n"
