"""MIRBAD_BIND in every spelling: an address, an address with a port, or a sentence that says what to write."""

import pytest

from agent.common import listening
from mirbad.kernel.conf import BadSettings, Settings, read_settings
from mirbad.up.session import web_url

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "bind", "port", "url"),
    [
        ("127.0.0.1", "127.0.0.1", 8080, "http://127.0.0.1:8080"),
        ("127.0.0.9", "127.0.0.9", 8080, "http://127.0.0.9:8080"),
        ("localhost", "localhost", 8080, "http://localhost:8080"),
        ("LOCALHOST", "localhost", 8080, "http://localhost:8080"),
        ("0.0.0.0", "0.0.0.0", 8080, "http://127.0.0.1:8080"),
        ("192.0.2.10", "192.0.2.10", 8080, "http://192.0.2.10:8080"),
        (" 192.0.2.10 ", "192.0.2.10", 8080, "http://192.0.2.10:8080"),
        ("192.0.2.10:8000", "192.0.2.10", 8000, "http://192.0.2.10:8000"),
        ("0.0.0.0:80", "0.0.0.0", 80, "http://127.0.0.1:80"),
        ("master.lan", "master.lan", 8080, "http://master.lan:8080"),
        ("master.lan:9000", "master.lan", 9000, "http://master.lan:9000"),
        ("node-1", "node-1", 8080, "http://node-1:8080"),
        ("1node", "1node", 8080, "http://1node:8080"),
        ("::", "::", 8080, "http://127.0.0.1:8080"),
        ("[::]", "::", 8080, "http://127.0.0.1:8080"),
        ("[::]:8000", "::", 8000, "http://127.0.0.1:8000"),
        ("0:0:0:0:0:0:0:0", "::", 8080, "http://127.0.0.1:8080"),
        ("::1", "::1", 8080, "http://[::1]:8080"),
        ("[::1]", "::1", 8080, "http://[::1]:8080"),
        ("[::1]:8000", "::1", 8000, "http://[::1]:8000"),
        ("0:0::1", "::1", 8080, "http://[::1]:8080"),
        ("FD00:0::5", "fd00::5", 8080, "http://[fd00::5]:8080"),
        ("[2001:DB8::10]:8000", "2001:db8::10", 8000, "http://[2001:db8::10]:8000"),
        ("::ffff:192.0.2.10", "192.0.2.10", 8080, "http://192.0.2.10:8080"),
        ("::ffff:0.0.0.0", "0.0.0.0", 8080, "http://127.0.0.1:8080"),
    ],
)
def test_an_address_is_taken_in_its_short_form_with_its_port(text, bind, port, url):
    read = read_settings({"MIRBAD_BIND": text})
    assert (read.bind, read.port, web_url(read)) == (bind, port, url)


@pytest.mark.parametrize(
    "text",
    ["", "*", "*:8080", ":8000", "http://0.0.0.0:8000", "0", "127.1", "0x7f.1", "256.1.1.1", "1.2.3", "[::", "::]",
     "[::1", "[localhost]", "fe80::1", "fe80::1%eth0", "fd00::1%eth0", "ff02::1", "224.0.0.1", "255.255.255.255",
     "a b", "[::]:", "[::]:x", "0.0.0.0:", "0.0.0.0,::", "1:2:3", "[[::1]]", "/run/mirbad.sock"],
)  # fmt: skip
def test_anything_else_is_refused_by_name_and_with_examples(text):
    with pytest.raises(BadSettings) as refused:
        read_settings({"MIRBAD_BIND": text})
    assert str(refused.value).startswith("MIRBAD_BIND: ")
    assert "0.0.0.0 for all of IPv4, or :: for all" in str(refused.value)


def test_a_port_twice_is_one_port_or_a_contradiction():
    assert read_settings({"MIRBAD_BIND": "[::]:8000", "MIRBAD_PORT": "8000"}).port == 8000
    with pytest.raises(BadSettings, match="MIRBAD_BIND has the port 8000 and MIRBAD_PORT is 9000"):
        read_settings({"MIRBAD_BIND": "[::]:8000", "MIRBAD_PORT": "9000"})
    with pytest.raises(BadSettings, match="MIRBAD_PORT: "):
        read_settings({"MIRBAD_BIND": "[::]:99999"})


@pytest.mark.parametrize(
    ("bind", "own"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", ""),
        ("::", ""),
        ("192.0.2.10", "192.0.2.10"),
        ("fd00::5", "[fd00::5]"),
        ("master.lan", "master.lan"),
    ],
)
def test_requests_for_the_address_that_is_listened_on_are_answered_without_another_setting(bind, own):
    names = Settings(bind=bind, hosts=("other.lan",)).names
    assert set(names) == {"127.0.0.1", "localhost", "[::1]", "other.lan", *([own] if own else [])}


def test_every_address_is_two_sockets_and_any_other_is_its_own():
    assert listening.host_of("::") == listening.host_of("[::]") == ""
    assert listening.host_of("0.0.0.0") == "0.0.0.0"
    assert listening.host_of("::1") == listening.host_of("[::1]") == "::1"
    assert {address[0] for _, address in listening.sockets_of("::", 8080)} == {"0.0.0.0", "::"}
    assert [address[:2] for _, address in listening.sockets_of("::1", 8080)] == [("::1", 8080)]
