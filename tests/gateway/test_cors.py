"""Pages of other origins: refused unless a setting names them, then answered before and after the key is checked."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from mirbad.kernel.conf import Settings
from tests.gateway.downstream import CHAT, ask

pytestmark = pytest.mark.e2e

OWN = "https://chat.example"
NAMES = "authorization,content-type,x-new"
PREFLIGHT = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": NAMES}


@pytest.fixture
def allow(each_protocol, monkeypatch):
    def choose(*origins):
        options = replace(each_protocol.options, origins=frozenset(origins))
        monkeypatch.setattr(each_protocol.gateway, "options", options)
        return each_protocol

    return choose


def allowed(answer):
    return answer.getheader("access-control-allow-origin")


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing"])
def test_a_preflight_from_a_named_origin_needs_no_key(allow, path):
    answer, _ = ask(allow(OWN), None, path, method="OPTIONS", key=None, Origin=OWN, **PREFLIGHT)
    assert (answer.status, allowed(answer)) == (204, OWN)
    assert answer.getheader("access-control-allow-headers") == NAMES
    assert "POST" in answer.getheader("access-control-allow-methods")
    assert answer.getheader("vary") == "origin"


@pytest.mark.parametrize("origins", [(), ("https://other.example",)])
@pytest.mark.parametrize("origin", [OWN, "null", "https://chat.example.evil", "http://chat.example"])
def test_another_origin_gets_no_permission(allow, origins, origin):
    fleet = allow(*origins)
    answer, _ = ask(fleet, None, method="OPTIONS", key=None, Origin=origin, **PREFLIGHT)
    assert (answer.status, allowed(answer)) == (401, None)
    answer, _ = ask(fleet, {"model": "m"}, Origin=origin)
    assert (answer.status, allowed(answer)) == (200, None)


@pytest.mark.parametrize("origins", [(OWN,), ("*",), ("http://localhost:3000", OWN)])
def test_responses_and_refusals_can_be_read_by_the_page(allow, origins):
    fleet = allow(*origins)
    for body, key, status in (({"model": "m"}, {}, 200), ({"model": "x"}, {}, 404), ({}, {"key": None}, 401)):
        answer, _ = ask(fleet, body, Origin=OWN, **key)
        assert (answer.status, allowed(answer)) == (status, OWN)
        assert "retry-after" in answer.getheader("access-control-expose-headers")
    answer, _ = ask(fleet, {"model": "m"})
    assert allowed(answer) is None


def test_an_odd_list_of_headers_is_not_repeated(allow):
    odd = {**PREFLIGHT, "Access_Control_Request_Headers": "a;b<script>"}
    answer, _ = ask(allow(OWN), None, method="OPTIONS", key=None, Origin=OWN, **odd)
    assert answer.getheader("access-control-allow-headers") == "authorization, content-type, x-api-key"


@pytest.mark.parametrize("text", ["chat.example", "https://chat.example/", "https://a b"])
def test_a_setting_that_is_no_origin_is_refused(text):
    with pytest.raises(ValidationError, match="is not an origin"):
        Settings(v1_origins=text)
    assert Settings(v1_origins=f"{OWN}, HTTP://LOCALHOST:3000").v1_origins == (OWN, "http://localhost:3000")
