"""The page of admin tokens: for owners; a secret is shown once; what is revoked is refused at once."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from audit.models import AuditLine
from mirbad.accounts import tokens
from mirbad.accounts.models import AdminToken
from mirbad.kernel import actor, clock

pytestmark = pytest.mark.app


def _make(client, **fields):
    return client.post("/tokens/new", {"name": "ci", "role": "viewer", "lifetime_days": "30", **fields})


def _secret(page) -> str:
    return re.search(r"mbt_[A-Za-z0-9_-]{43}", page.content.decode())[0]


def _asks(secret: str, path: str = "/api/nodes") -> int:
    return Client(headers={"Authorization": f"Bearer {secret}"}).get(path).status_code


def test_a_token_is_made_with_role_and_end_and_its_secret_is_shown_once(owner):
    page = _make(owner.client)
    assert page["Cache-Control"] == "no-store"
    secret = _secret(page)
    assert _asks(secret) == 200
    assert _asks(secret, "/api/tokens") == 403, "it has the role that was chosen, not that of its maker"
    row = AdminToken.objects.get()
    assert (row.name, row.role, row.owner) == ("ci", "viewer", owner.user)
    assert timedelta(days=29) < row.expires_at - clock.now() <= timedelta(days=30)
    shown = owner.client.get("/tokens").content.decode()
    assert row.prefix in shown
    assert secret not in shown
    assert AuditLine.objects.get(action="admin-token").actor.startswith("admin:")


def test_a_token_may_have_no_end(owner):
    _make(owner.client, lifetime_days="")
    assert AdminToken.objects.get().expires_at is None
    assert owner.client.get("/tokens").content.decode().count(">never<") == 2  # last used, and expires


@pytest.mark.parametrize("fields", [{"name": ""}, {"name": "x" * 101}, {"role": "root"}, {"lifetime_days": "9999"}])
def test_what_is_no_token_is_told_beside_its_field_and_makes_none(owner, fields):
    page = _make(owner.client, **fields)
    assert page.status_code == 200
    assert "mbt_" not in page.content.decode()
    assert not AdminToken.objects.exists()


def test_a_revoked_token_is_refused_at_once_and_leaves_the_list(owner):
    secret = _secret(_make(owner.client))
    token = AdminToken.objects.get()
    assert owner.client.post(f"/tokens/{token.pk}/revoke", headers={"HX-Request": "true"}).status_code == 204
    assert _asks(secret) == 401
    assert token.prefix not in owner.client.get("/tokens").content.decode()
    assert "Revoked" in owner.client.get("/tokens?revoked=1").content.decode()
    again = owner.client.post(f"/tokens/{token.pk}/revoke", headers={"HX-Request": "true"})
    assert (again.status_code, b"already revoked" in again.content) == (409, True)
    assert owner.client.post("/tokens/999/revoke", headers={"HX-Request": "true"}).status_code == 404
    results = list(AuditLine.objects.filter(action="admin-token").order_by("pk").values_list("result", flat=True))
    assert results == ["succeeded", "succeeded", "refused", "refused"]


def test_a_token_that_ended_or_whose_maker_left_is_told_from_one_that_works(owner, operator):
    tokens.create("of one who left", "viewer", actor=actor.CONFIG, owner=operator.user)
    operator.user.is_active = False
    operator.user.save()
    tokens.create("ended", "viewer", actor=actor.CONFIG, expires_at=clock.now() + timedelta(seconds=60))
    AdminToken.objects.filter(name="ended").update(expires_at=clock.now() - timedelta(seconds=1))
    shown = owner.client.get("/tokens").content.decode()
    assert "Refused" in shown
    assert "Ended" in shown


@pytest.mark.parametrize("who", ["operator", "viewer", "stranger"])
def test_tokens_are_for_owners(people, who):
    token, _ = tokens.create("ci", "viewer", actor=actor.CONFIG)
    client = people[who].client
    assert client.get("/tokens").status_code == 403
    assert _make(client).status_code == 403
    assert client.post(f"/tokens/{token.pk}/revoke").status_code == 403
    assert AdminToken.objects.get().revoked_at is None
    assert "/tokens" not in client.get("/").content.decode()


def test_whoever_is_not_signed_in_is_led_to_the_log_in(anybody, db):
    assert anybody.get("/tokens")["Location"] == "/login?next=/tokens"


def test_more_tokens_cost_no_more_statements(owner):
    def count() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert owner.client.get("/tokens").status_code == 200
        return len(seen)

    tokens.create("first", "viewer", actor=actor.CONFIG, owner=owner.user)
    count()
    one = count()
    for number in range(20):
        tokens.create(f"more {number}", "viewer", actor=actor.CONFIG, owner=owner.user)
    assert count() == one
