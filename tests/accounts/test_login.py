"""Log-in: the right password, the wrong one, the sixth try, log-in switched off."""

import json

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from audit.models import AuditLine
from mirbad.accounts import people
from mirbad.api import addresses

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def admin(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    people.ensure_admin(PASSWORD)


def log_in(client, password=PASSWORD, name="admin", **extra):
    return client.post("/login", {"username": name, "password": password}, **extra)


def lines():
    return list(AuditLine.objects.order_by("id").values_list("actor", "result", "error_code", "target"))


def test_the_right_password_signs_in_as_owner_and_leaves_a_line(anybody):
    response = log_in(anybody)
    assert response.status_code == 302
    ((actor, result, code, target),) = lines()
    assert (result, code, target) == ("succeeded", "", "admin")
    assert actor.startswith("admin:")
    assert len(actor) == len("admin:") + 12
    assert anybody.get("/api/tokens").status_code == 200


def test_the_line_names_the_session_only_by_a_hash(anybody):
    log_in(anybody)
    key = anybody.session.session_key
    assert key not in str(AuditLine.objects.values_list())
    anybody.post("/api/tokens", json.dumps({"name": "x", "role": "viewer"}), content_type="application/json")
    actors = set(AuditLine.objects.values_list("actor", flat=True))
    assert len(actors) == 1


def test_the_wrong_password_is_403_with_a_line_and_without_the_password(anybody):
    response = log_in(anybody, "hunter2hunter2")
    assert response.status_code == 403
    assert lines() == [("api:127.0.0.1", "refused", "wrong_password", "admin")]
    assert "hunter2" not in response.content.decode()
    assert "hunter2" not in str(list(AuditLine.objects.values()))


def test_an_unknown_name_gets_the_same_answer_as_a_wrong_password(anybody):
    one = log_in(anybody, "wrong").content.decode()
    other = log_in(anybody, "wrong", name="nobody").content.decode()
    assert "Wrong user name or password" in one
    assert "Wrong user name or password" in other


def test_five_wrong_passwords_are_told_so_and_the_sixth_try_is_429(anybody):
    for _ in range(5):
        assert log_in(anybody, "wrong").status_code == 403
    response = log_in(anybody)
    assert response.status_code == 429
    assert response["Retry-After"] == "60"
    assert "html" in response["Content-Type"]
    assert [line[2] for line in lines()] == ["wrong_password"] * 5 + ["rate_limited"]


def test_the_sixth_try_of_a_program_is_a_problem_document(anybody):
    for _ in range(5):
        response = log_in(anybody, "wrong", headers={"Accept": "application/json"})
        assert (response.status_code, response.json()["code"]) == (403, "wrong_password")
    response = log_in(anybody, "wrong", headers={"Accept": "application/json"})
    assert (response.status_code, response.json()["code"]) == (429, "rate_limited")


def test_another_name_or_browser_does_not_get_around_the_limit(anybody):
    for number in range(5):
        log_in(anybody, "wrong", name=f"name{number}", headers={"User-Agent": f"browser {number}"})
    assert log_in(Client()).status_code == 429


def test_after_a_minute_the_client_may_try_again(anybody):
    with time_machine.travel("2027-01-01T00:00:00Z", tick=False) as moment:
        for _ in range(6):
            log_in(anybody, "wrong")
        assert log_in(anybody).status_code == 429
        moment.shift(61)
        assert log_in(anybody).status_code == 302


def test_another_address_is_not_locked_out(anybody):
    for _ in range(6):
        log_in(anybody, "wrong", REMOTE_ADDR="192.0.2.1")
    assert log_in(anybody, REMOTE_ADDR="192.0.2.2").status_code == 302


def test_a_header_that_anyone_can_send_does_not_get_around_the_limit(anybody):
    for number in range(5):
        log_in(anybody, "wrong", headers={"X-Forwarded-For": f"198.51.100.{number}"})
    assert log_in(anybody, headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 429


def test_behind_a_trusted_proxy_each_client_counts_for_itself(anybody, monkeypatch):
    trusting = addresses.settings().model_copy(update={"trusted_proxies": ("127.0.0.1", "10.0.0.0/8")})
    monkeypatch.setattr(addresses, "settings", lambda: trusting)
    for _ in range(6):
        log_in(anybody, "wrong", headers={"X-Forwarded-For": "198.51.100.1, 10.1.2.3"})
    assert log_in(anybody, headers={"X-Forwarded-For": "198.51.100.1"}).status_code == 429
    assert log_in(anybody, headers={"X-Forwarded-For": "203.0.113.9, 198.51.100.2"}).status_code == 302
    assert lines()[0][0] == "api:198.51.100.1"


@pytest.fixture
def disabled(monkeypatch):
    off = people.settings().model_copy(update={"admin_password": ""})
    monkeypatch.setattr(people, "settings", lambda: off)
    people.ensure_admin("")


def test_with_log_in_disabled_even_the_old_password_is_refused(anybody, disabled):
    response = log_in(anybody)
    assert response.status_code == 403
    assert "MIRBAD_ADMIN_PASSWORD" in response.content.decode()
    assert lines()[0][2] == "reauthentication_failed"


def test_disabling_log_in_ends_sessions_that_were_open(anybody):
    log_in(anybody)
    assert anybody.get("/api/tokens").status_code == 200
    people.ensure_admin("")
    assert anybody.get("/api/tokens").status_code == 401


def test_an_unchanged_password_keeps_sessions_and_a_new_one_ends_them(anybody):
    log_in(anybody)
    assert people.ensure_admin(PASSWORD) is False
    assert anybody.get("/api/tokens").status_code == 200
    assert people.ensure_admin("another one entirely") is True
    assert anybody.get("/api/tokens").status_code == 401


def test_the_admin_is_made_once_and_stays_an_owner():
    people.ensure_admin(PASSWORD)
    user = User.objects.get()
    user.groups.clear()
    people.ensure_admin(PASSWORD)
    assert user.groups.get().name == "owner"


def test_log_out_ends_the_session_and_needs_a_post(anybody):
    log_in(anybody)
    assert anybody.get("/logout").status_code == 405
    assert anybody.post("/logout").status_code == 302
    assert anybody.get("/api/tokens").status_code == 401


def test_log_in_leads_back_only_to_this_master(anybody):
    assert log_in(anybody)["Location"] == "/"
    response = Client().post("/login", {"username": "admin", "password": PASSWORD, "next": "https://evil.example/"})
    assert response["Location"] == "/"
    response = Client().post("/login", {"username": "admin", "password": PASSWORD, "next": "/nodes"})
    assert response["Location"] == "/nodes"


def test_a_client_without_an_address_is_counted_too(anybody):
    for _ in range(5):
        assert log_in(anybody, "wrong", REMOTE_ADDR="").status_code == 403
    assert log_in(anybody, REMOTE_ADDR="").status_code == 429


def test_the_sixth_try_is_429_on_the_asynchronous_server_too():
    client = AsyncClient()
    post = async_to_sync(client.post)
    tries = [post("/login", {"username": "admin", "password": "wrong"}).status_code for _ in range(6)]
    assert tries == [403] * 5 + [429]
    assert [line[2] for line in lines()] == ["wrong_password"] * 5 + ["rate_limited"]
