"""Admin tokens: made once, shown once, ended at once."""

import json
from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from audit.models import AuditLine
from mirbad.accounts import tokens
from mirbad.accounts.models import AdminToken
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel import actor, clock
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def bearer(secret):
    return Client(headers={"Authorization": f"Bearer {secret}"}, raise_request_exception=False)


def make(role="owner", **more):
    return tokens.create("ci", role, actor=actor.CONFIG, **more)


def test_the_secret_is_in_the_answer_and_nowhere_else(owner):
    response = owner.client.post(
        "/api/tokens", json.dumps({"name": "ci", "role": "operator"}), content_type="application/json"
    )
    assert response.status_code == 201
    assert response["Cache-Control"] == "no-store"
    secret = response.json()["secret"]
    assert secret.startswith("mbt_")
    assert len(secret) == 4 + 43
    rows = str(list(AdminToken.objects.values())) + str(list(AuditLine.objects.values()))
    assert secret[12:] not in rows
    assert secret not in owner.client.get("/api/tokens").content.decode()
    assert bearer(secret).get("/api/audit").status_code == 200


@pytest.mark.parametrize("header", ["Bearer mbt_wrong", "Bearer ", "bearer mbt_" + "A" * 43, "Bearer ssk_" + "A" * 43])
def test_a_token_that_is_none_is_401(db, header):
    response = Client(headers={"Authorization": header}).get("/api/audit")
    assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")


def test_a_dead_token_is_not_saved_by_a_session(owner):
    assert owner.client.get("/api/audit", headers={"Authorization": "Bearer mbt_x"}).status_code == 401


def test_a_revoked_token_ends_at_once(owner):
    token, secret = make()
    assert bearer(secret).get("/api/audit").status_code == 200
    assert owner.client.delete(f"/api/tokens/{token.pk}").status_code == 204
    assert bearer(secret).get("/api/audit").status_code == 401
    assert owner.client.delete(f"/api/tokens/{token.pk}").json()["code"] == "invalid_state"
    assert owner.client.delete("/api/tokens/12345").json()["code"] == "not_found"


def test_an_expired_token_ends_by_itself(db):
    _, secret = make(expires_at=clock.now() + timedelta(hours=1))
    assert bearer(secret).get("/api/audit").status_code == 200
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        assert bearer(secret).get("/api/audit").status_code == 401


def test_a_token_ends_with_the_account_of_its_owner(operator):
    _, secret = make("operator", owner=operator.user)
    assert bearer(secret).get("/api/keys").status_code == 200
    operator.user.is_active = False
    operator.user.save()
    assert bearer(secret).get("/api/keys").status_code == 401


def test_a_token_never_rises_above_its_owner(viewer):
    _, secret = make("owner", owner=viewer.user)
    assert bearer(secret).get("/api/tokens").status_code == 403


def test_a_token_of_a_lower_role_than_its_owner_has_the_lower_role(owner):
    _, secret = make("viewer", owner=owner.user)
    assert bearer(secret).get("/api/tokens").status_code == 403
    assert bearer(secret).get("/api/audit").status_code == 200


def test_use_is_noted_at_most_once_a_minute(db, django_assert_num_queries):
    token, secret = make()
    with time_machine.travel(clock.now(), tick=False) as moment:
        assert tokens.find(secret)
        token.refresh_from_db()
        first = token.last_used_at
        assert first is not None
        moment.shift(30)
        with django_assert_num_queries(1):
            tokens.find(secret)
        token.refresh_from_db()
        assert token.last_used_at == first
        moment.shift(31)
        tokens.find(secret)
        token.refresh_from_db()
        assert token.last_used_at > first


def test_the_actor_of_a_token_is_the_address_it_came_from(db):
    _, secret = make()
    bearer(secret).post("/api/tokens", json.dumps({"name": "x", "role": "viewer"}), content_type="application/json")
    assert AuditLine.objects.order_by("id").last().actor == "api:127.0.0.1"


def test_a_refused_write_leaves_a_line_and_a_stranger_without_a_name_none(viewer, anybody):
    body = json.dumps({"name": "x", "role": "viewer"})
    viewer.client.post("/api/tokens", body, content_type="application/json")
    anybody.post("/api/tokens", body, content_type="application/json")
    (line,) = AuditLine.objects.all()
    assert (line.action, line.result, line.error_code) == ("admin-token", "refused", "forbidden")


@pytest.mark.parametrize("values", [{"name": " "}, {"name": "x" * 101}, {"role": "king"}, {"expires_at": -1}])
def test_a_token_that_makes_no_sense_is_refused(db, values):
    asked = {"name": "ci", "role": "viewer", **values}
    if "expires_at" in asked:
        asked["expires_at"] = clock.now() - timedelta(seconds=1)
    with pytest.raises(InvalidRequest):
        tokens.create(**asked, actor=actor.CONFIG)


def test_revoking_what_is_not_there_or_gone_already_is_an_error(db):
    with pytest.raises(NotFound):
        tokens.revoke(1, actor.CONFIG)
    token, _ = make()
    tokens.revoke(token.pk, actor.CONFIG)
    with pytest.raises(Conflict):
        tokens.revoke(token.pk, actor.CONFIG)


class _Request:
    def __init__(self, user, auth=None):
        self.user, self.auth = user, auth


def test_sensitive_actions_pass_with_a_session_or_an_owners_token_and_no_other(operator):
    from mirbad.accounts.authentication import TokenBearer
    from mirbad.accounts.errors import ReauthenticationFailed

    require_reauthentication(_Request(operator.user))
    require_reauthentication(_Request(TokenBearer(), make("owner")[0]))
    with pytest.raises(ReauthenticationFailed):
        require_reauthentication(_Request(TokenBearer(), make("operator")[0]))


def test_with_log_in_disabled_nobody_passes(owner, monkeypatch):
    from mirbad.accounts import people
    from mirbad.accounts.errors import ReauthenticationFailed

    off = people.settings().model_copy(update={"admin_password": ""})
    monkeypatch.setattr(people, "settings", lambda: off)
    with pytest.raises(ReauthenticationFailed):
        require_reauthentication(_Request(owner.user))
