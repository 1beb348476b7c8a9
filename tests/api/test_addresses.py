"""The client's address behind proxies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirbad.api import addresses

pytestmark = pytest.mark.unit


class Request:
    def __init__(self, peer, header=None):
        self.META = {"REMOTE_ADDR": peer} if header is None else {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": header}


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    given_settings = addresses.settings().model_copy(update={"trusted_proxies": ("10.0.0.0/8", "fd00::/8")})
    monkeypatch.setattr(addresses, "settings", lambda: given_settings)


@pytest.mark.parametrize(
    ("peer", "header", "address"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "not an address", "10.0.0.1"),
        ("10.0.0.1", "junk, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("", None, "unknown"),
    ],
)
def test_the_nearest_address_that_no_trusted_proxy_has(peer, header, address):
    assert addresses.client_address(Request(peer, header)) == address


@given(st.text())
def test_no_header_whatever_makes_an_untrusted_peer_another(header):
    assert addresses.client_address(Request("192.0.2.1", header)) == "192.0.2.1"
