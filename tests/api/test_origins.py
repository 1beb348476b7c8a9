"""The master's address as the browser has it: behind proxies, on other ports, as IPv6."""

import json
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from mirbad.api import origins
from mirbad.routing import OriginGuard

pytestmark = pytest.mark.unit

HOSTS = ["127.0.0.1", "localhost", "[::1]", "m.example", ".lan.example", "192.0.2.7", "[2001:db8::1]"]
TRUSTED = ["http://m.example", "https://m.example", "http://m.example:8080", "https://*.lan.example"]
EVIL = "https://evil.example"


@pytest.fixture(autouse=True)
def _listed(settings):
    settings.ALLOWED_HOSTS = HOSTS
    settings.CSRF_TRUSTED_ORIGINS = TRUSTED


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://m.example", "https://m.example"),
        ("https://m.example:443", "https://m.example"),
        ("http://m.example:443", "http://m.example:443"),
        ("HTTPS://M.Example:8444", "https://m.example:8444"),
        ("http://[2001:0DB8:0::1]:8080", "http://[2001:db8::1]:8080"),
        ("https://[::1]", "https://[::1]"),
        ("null", "None"),
        ("", "None"),
        ("ftp://m.example", "None"),
        ("https://m.example:99999", "None"),
        ("https://[::1", "None"),
        ("https://", "None"),
    ],
)
def test_an_origin_is_read_in_one_form(text, address):
    assert str(origins.parse(text)) == address


@pytest.mark.parametrize(
    ("host", "secure", "origin", "address"),
    [
        ("m.example:8080", False, None, "http://m.example:8080"),
        ("m.example", True, None, "https://m.example"),
        ("m.example:8444", True, None, "https://m.example:8444"),
        ("m.example", False, "https://m.example", "https://m.example"),
        ("[2001:db8::1]:8080", False, None, "http://[2001:db8::1]:8080"),
        ("a.lan.example:81", False, "http://a.lan.example:81", "http://a.lan.example:81"),
        ("m.example:8080", False, EVIL, "http://m.example:8080"),
        ("m.example:8080", False, "null", "http://m.example:8080"),
    ],
)
def test_the_browsers_address_is_its_own_where_it_names_a_listed_one(host, secure, origin, address):
    headers = {"Host": host, **({"Origin": origin} if origin else {})}
    assert origins.browser(RequestFactory().post("/", headers=headers, secure=secure)) == address


@pytest.mark.parametrize(
    ("origin", "host", "opens"),
    [
        ("http://m.example:8080", "m.example:8080", True),
        ("http://m.example", "m.example", True),
        ("https://m.example:8444", "m.example:8444", True),
        ("https://m.example", "m.example:443", True),
        ("http://[2001:db8:0::1]:8080", "[2001:db8::1]:8080", True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("https://m.example", "127.0.0.1:8080", True),  # trusted: a proxy that replaces Host
        ("https://a.lan.example", "x", True),
        ("http://m.example:9999", "m.example:8080", False),
        ("http://192.0.2.7:9999", "192.0.2.7:8080", False),
        ("http://127.0.0.1:3000", "127.0.0.1:8080", False),
        ("http://localhost:8080", "127.0.0.1:8080", False),
        ("https://m.example:8444", "m.example", False),
        ("https://lan.example.evil", "lan.example.evil", False),
        (EVIL, "m.example", False),
        (EVIL, "evil.example", False),
        ("null", "m.example", False),
        ("", "m.example", False),
    ],
)
async def test_a_websocket_opens_for_a_page_of_the_same_host_and_port_alone(origin, host, opens):
    assert origins.may_open(origins.parse(origin), host) is opens
    sent, reached, arriving = [], [], iter(["websocket.connect", "websocket.disconnect"])

    async def app(*_):
        reached.append(True)

    async def receive():
        return {"type": next(arriving), "code": 1006}

    async def send(message):
        sent.append(message)

    headers = [(b"origin", origin.encode()), (b"host", host.encode())]
    scope = {"type": "websocket", "scheme": "ws", "path": "/live", "headers": headers}
    guard = OriginGuard(app)
    await guard(scope, receive, send)
    assert bool(reached) is opens
    assert [message["type"] for message in sent] == ([] if opens else ["websocket.close"])


@pytest.mark.parametrize(
    ("origin", "arrived", "part"),
    [
        ("https://m.example:8444", "https://m.example", "lost the port 8444"),
        ("https://m.example:8444", "http://m.example", "lost the port 8444"),
        ("http://[2001:db8::1]:81", "http://[2001:db8::1]", "lost the port 81"),
        ("https://m.example:8444", "http://m.example:8444", "X-Forwarded-Proto"),
        ("https://m.example", "http://m.example", "X-Forwarded-Proto"),
        ("https://m.example:8444", "http://127.0.0.1:8080", "replaced the header Host"),
        (EVIL, "https://m.example", ""),
        ("https://m.example", "https://m.example", ""),
        ("null", "https://m.example", ""),
    ],
)
def test_a_proxy_that_changes_the_address_is_named(origin, arrived, part):
    sentence = origins.proxy_fault(origins.parse(origin), origins.parse(arrived))
    assert part in sentence
    assert bool(sentence) is bool(part)


@pytest.mark.app
def test_a_form_behind_a_proxy_that_lost_the_port_says_so_on_the_page_and_to_a_program(db):
    browser = Client(enforce_csrf_checks=True)
    browser.get("/login", headers={"Host": "m.example"}, secure=True)
    head = {"Host": "m.example", "Origin": "https://m.example:8444"}
    page = browser.post("/login", {"username": "x", "password": "y"}, headers=head, secure=True)
    assert page.status_code == 403
    assert "lost the port 8444" in page.content.decode()
    browser.force_login(User.objects.create_user("sam"))
    answer = browser.post("/api/tokens", json.dumps({}), content_type="application/json", headers=head, secure=True)
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed")
    assert "lost the port 8444" in answer.json()["detail"]


@pytest.mark.app
@pytest.mark.parametrize("secure", [True, False])
def test_cookies_and_transport_are_secure_over_tls_and_usable_without(db, secure):
    User.objects.create_user("sam", password="a password of sam")
    browser = Client(headers={"Host": "m.example"})
    answer = browser.get("/login", secure=secure)
    signed_in = browser.post("/login", {"username": "sam", "password": "a password of sam"}, secure=secure)
    cookies = {**answer.cookies, **signed_in.cookies}
    assert set(cookies) == {"csrftoken", "sessionid", "mirbad_device"}
    assert {bool(cookie["secure"]) for cookie in cookies.values()} == {secure}
    assert cookies["sessionid"]["httponly"]
    assert ("Strict-Transport-Security" in answer.headers) is secure


def test_every_listed_name_is_trusted_in_both_schemes_and_its_ports():
    from importlib import reload
    from unittest.mock import patch

    from mirbad import settings as module
    from mirbad.kernel import conf

    given = conf.read_settings(
        {"MIRBAD_HOSTS": "m.example,.lan.example,2001:0db8:0::1,[::2],*", "MIRBAD_SECRET_KEY": "s" * 40}
    )
    try:
        with patch.object(conf, "settings", lambda: given):
            made = SimpleNamespace(**{name: getattr(reload(module), name) for name in dir(module) if name.isupper()})
    finally:
        reload(module)
    assert {"m.example", ".lan.example", "[2001:db8::1]", "[::2]"} < set(made.ALLOWED_HOSTS)
    trusted = set(made.CSRF_TRUSTED_ORIGINS)
    for host in ("m.example", "*.lan.example", "lan.example", "[2001:db8::1]", "[::2]"):
        assert {f"http://{host}", f"https://{host}", f"http://{host}:8080", f"https://{host}:8080"} <= trusted
    assert not [origin for origin in trusted if origin.endswith("//*")]
    assert settings.ALLOWED_HOSTS == HOSTS
