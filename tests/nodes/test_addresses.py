"""Addresses at which an agent may be dialled."""

import socket

import psutil
import pytest

from mirbad.kernel.conf import settings
from nodes import addresses
from nodes.addresses import BadAddress, check

pytestmark = pytest.mark.unit


def own_address() -> str:
    found = sorted(addresses.own_addresses() - {"127.0.0.1", "::1"})
    if not found:
        pytest.skip("this machine has only loopback addresses")
    return found[0]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("192.0.2.7", "192.0.2.7"),
        (" 10.1.2.3 ", "10.1.2.3"),
        ("172.17.0.2", "172.17.0.2"),
        ("100.64.0.9", "100.64.0.9"),
        ("2001:DB8::0007", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("fd00::1", "fd00::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_address_of_a_machine_is_taken_in_its_short_form(given, stored):
    assert check(given, 9443, loopback_allowed=False) == stored


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.8.7",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "239.255.255.250",
        "ff02::1",
        "255.255.255.255",
        "169.254.169.254",
        "::ffff:169.254.1.1",
        "fe80::1",
        "fe80::1%eth0",
        "240.0.0.1",
    ],
)
def test_an_address_that_is_not_one_machine_elsewhere_is_refused(address):
    with pytest.raises(BadAddress) as caught:
        check(address, 9443, loopback_allowed=False)
    assert caught.value.code == "invalid_request"
    assert caught.value.problems[0]["field"] == "address"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_taken_for_the_master_s_own_machine(address):
    assert check(address, 9443, loopback_allowed=True)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "https://pc",
        "pc:9443",
        "pc/x",
        "user@pc",
        "a b",
        "pc\x00",
        "pc\n",
        "-" * 300,
        "1234",
        "1.2.3",
        "0x7f000001",
        "2130706433",
        "é.example",
        "..",
    ],
)
def test_what_is_no_address_and_no_host_name_is_refused(host):
    def never(name):
        raise socket.gaierror("unknown") if any(c.isalpha() for c in name) else AssertionError(name)

    with pytest.raises(BadAddress):
        check(host, 9443, loopback_allowed=False, resolver=never)


def test_a_name_is_resolved_once_and_every_address_behind_it_must_pass():
    asked = []

    def resolver(*found):
        def resolve(name):
            asked.append(name)
            return found

        return resolve

    assert check("PC-1.lan.", 9443, loopback_allowed=False, resolver=resolver("192.0.2.7", "fd00::1")) == "pc-1.lan"
    assert asked == ["PC-1.lan."]
    with pytest.raises(BadAddress, match="loopback"):
        check("rebind.example", 9443, loopback_allowed=False, resolver=resolver("192.0.2.7", "127.0.0.1"))
    with pytest.raises(BadAddress, match="does not resolve"):
        check("nothing.example", 9443, loopback_allowed=False, resolver=resolver())


def test_the_master_s_own_ports_are_refused_on_its_own_addresses_only():
    mine = own_address()
    for port in (settings().port, settings().enroll_port):
        with pytest.raises(BadAddress, match="belongs to the master"):
            check(mine, port, loopback_allowed=False)
        with pytest.raises(BadAddress, match="belongs to the master"):
            check("127.0.0.1", port, loopback_allowed=True)
        assert check("192.0.2.7", port, loopback_allowed=False)
    assert check(mine, settings().agent_port, loopback_allowed=False) == mine


def test_own_addresses_are_those_of_the_interfaces():
    known = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert addresses.own_addresses() <= known
    assert "127.0.0.1" in addresses.own_addresses()
    assert all(addresses.is_own(addresses.ipaddress.ip_address(text)) for text in addresses.own_addresses())
    assert not addresses.is_own(addresses.ipaddress.ip_address("192.0.2.7"))
