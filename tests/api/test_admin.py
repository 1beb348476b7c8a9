"""The Django admin: for staff with a role, for looking; nothing secret, nothing to add or delete."""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import reverse

from audit import log
from audit.models import AuditLine
from jobs.models import Operation
from mirbad.accounts import tokens
from mirbad.accounts.models import AdminToken
from mirbad.kernel import actor
from mirbad.kernel.seal import seal
from models_app.models import ApiKey, ModelDefinition
from nodes.models import JoinToken, Node, NodePin
from tests.api.conftest import SPKI

pytestmark = [pytest.mark.app, pytest.mark.django_db]

OURS = [
    model
    for model in admin.site._registry
    if model._meta.app_label in {"audit", "nodes", "models_app", "jobs", "accounts"}
]
SECRET = {"key_sealed", "client_key_sealed", "enroll_key_sealed", "secret_env_sealed", "digest", "answer"}
SECRET |= {"passphrase_sealed", "secret_sealed"}


def address(model, page, *args):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


@pytest.fixture
def rows(fleet, identity):
    _, secret = tokens.create("ci", "viewer", actor=actor.CONFIG)
    log.record("job", actor.CONFIG)
    ModelDefinition.objects.filter(pk="small").update(secret_env_sealed=seal(b"canary", "model-env:small"))
    JoinToken.objects.create(
        id="0" * 16, digest="e" * 64, purpose="join", node_id_text="pc-3", expires_at="2999-01-01T00:00Z",
        created_by="config", answer={"canary": "in the answer"},
    )  # fmt: skip
    return secret


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_every_list_and_every_row_can_be_looked_at_and_shows_no_secret(model, owner, rows):
    assert owner.client.get(address(model, "changelist")).status_code == 200
    for row in model.objects.all():
        page = owner.client.get(address(model, "change", row.pk))
        assert page.status_code == 200
        text = page.content.decode()
        assert "canary" not in text
        for name in SECRET & {field.name for field in model._meta.fields} - (
            {"digest"} if model is AuditLine else set()
        ):
            assert f"field-{name}" not in text
        assert "d" * 64 not in text
        assert "e" * 64 not in text
        assert rows[12:] not in text


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_nobody_adds_changes_or_deletes_a_row_there(model, owner, rows):
    assert owner.client.get(address(model, "add")).status_code == 403
    for row in list(model.objects.all()):
        assert owner.client.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
        assert owner.client.post(address(model, "change", row.pk), {}).status_code == 403
        assert model.objects.filter(pk=row.pk).exists()


def test_every_row_of_the_master_is_there_to_be_looked_at():
    from django.apps import apps

    all_models = {
        model
        for label in ("audit", "nodes", "models_app", "jobs", "accounts")
        for model in apps.get_app_config(label).get_models()
    }
    from models_app.models import ModelSource, RoutingVersion
    from nodes.models import TokenAttempt

    assert all_models - set(OURS) == {ModelSource, RoutingVersion, TokenAttempt}


def test_a_person_without_the_staff_mark_is_refused_and_a_stranger_led_to_the_log_in(viewer, anybody):
    assert viewer.client.get("/admin/", follow=True).status_code == 403
    assert anybody.get("/admin/", follow=True).redirect_chain[-1][0] == "/login?next=/admin/"


def test_staff_without_a_role_sees_nothing(stranger):
    User.objects.filter(pk=stranger.user.pk).update(is_staff=True)
    assert stranger.client.get(address(Node, "changelist")).status_code == 403


def act(client, model, action, *keys):
    return client.post(
        address(model, "changelist"), {"action": action, "_selected_action": [str(k) for k in keys]}, follow=True
    )


def test_an_owner_revokes_a_token_and_an_operator_cannot(owner, operator, rows):
    User.objects.filter(pk=operator.user.pk).update(is_staff=True)
    token = AdminToken.objects.get()
    act(operator.client, AdminToken, "revoke", token.pk)
    token.refresh_from_db()
    assert token.revoked_at is None
    act(owner.client, AdminToken, "revoke", token.pk)
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert AuditLine.objects.filter(action="admin-token", detail="revoked", actor__startswith="admin:").count() == 1


def test_a_key_is_revoked_and_a_node_drained_with_lines_in_the_audit_log(owner, fleet, identity):
    act(owner.client, ApiKey, "revoke", fleet.key.pk)
    act(owner.client, Node, "drain", "pc-1")
    fleet.key.refresh_from_db()
    fleet.node.refresh_from_db()
    assert fleet.key.revoked_at is not None
    assert fleet.node.draining
    assert set(AuditLine.objects.values_list("action", flat=True)) == {"api-key", "node.drain"}


def test_a_refused_action_is_told_and_changes_nothing(owner, fleet, identity):
    page = act(owner.client, Node, "drain", "pc-2")
    assert "waits for approval" in page.content.decode()


def _keys_on(page) -> dict[str, str]:
    return dict(re.findall(r'name="(key-[a-z0-9-]+)" value="([0-9a-f]*)"', page.content.decode()))


def test_a_node_is_approved_there_by_the_key_that_was_shown(owner, fleet, identity):
    page = act(owner.client, Node, "approve", "pc-2")
    assert _keys_on(page) == {"key-pc-2": SPKI}
    assert Node.objects.get(pk="pc-2").lifecycle == "pending", "the first page only asks"
    NodePin.objects.filter(node="pc-2").update(spki_sha256="cd" * 32)
    chosen = {"action": "approve", "_selected_action": ["pc-2"], "seen": "yes"}
    refused = owner.client.post(address(Node, "changelist"), {**chosen, **_keys_on(page)}, follow=True)
    assert "enrolled again with another key since" in refused.content.decode()
    assert Node.objects.get(pk="pc-2").lifecycle == "pending"
    again = _keys_on(act(owner.client, Node, "approve", "pc-2"))
    owner.client.post(address(Node, "changelist"), {**chosen, **again}, follow=True)
    assert Node.objects.get(pk="pc-2").lifecycle == "approved"
    assert AuditLine.objects.filter(action="node.approve", node_id_text="pc-2", result="succeeded").count() == 1


def test_a_request_is_rejected_there_once_that_was_confirmed(owner, fleet, identity):
    assert "Reject" in act(owner.client, Node, "reject", "pc-2").content.decode()
    assert Node.objects.filter(pk="pc-2").exists()
    chosen = {"action": "reject", "_selected_action": ["pc-2", "pc-1"], "seen": "yes"}
    said = owner.client.post(address(Node, "changelist"), chosen, follow=True).content.decode()
    assert not Node.objects.filter(pk="pc-2").exists()
    assert "Node pc-2 is rejected" in said
    assert Node.objects.filter(pk="pc-1").exists(), "an approved node is not rejected"


def test_a_certificate_is_rotated_there_and_a_node_that_does_not_serve_is_told_of(owner, fleet, identity):
    NodePin.objects.create(node=fleet.node, slot="current", spki_sha256="ef" * 32)
    act(owner.client, Node, "rotate", "pc-1")
    assert Operation.objects.filter(kind="rotate-cert", target_id="pc-1", finished_at=None).count() == 1
    said = act(owner.client, Node, "rotate", "pc-2").content.decode()
    assert "waits for approval" in said


@pytest.mark.parametrize("action", ["approve", "reject", "rotate"])
def test_those_who_only_look_admit_nobody_there(viewer, fleet, identity, action):
    User.objects.filter(pk=viewer.user.pk).update(is_staff=True)
    chosen = {"action": action, "_selected_action": ["pc-2"], "seen": "yes", "key-pc-2": SPKI}
    viewer.client.post(address(Node, "changelist"), chosen, follow=True)
    assert Node.objects.get(pk="pc-2").lifecycle == "pending"
    assert not Operation.objects.filter(kind="rotate-cert").exists()


def test_people_are_managed_by_owners_alone(owner, operator):
    User.objects.filter(pk=operator.user.pk).update(is_staff=True)
    assert owner.client.get(reverse("admin:auth_user_changelist")).status_code == 200
    assert operator.client.get(reverse("admin:auth_user_changelist")).status_code == 403


def test_nobody_makes_themselves_a_superuser_there(owner, operator):
    page = owner.client.get(reverse("admin:auth_user_change", args=[operator.user.pk])).content.decode()
    assert "is_superuser" not in page
    assert "user_permissions" not in page


def test_unused_tokens_are_withdrawn_there_by_operators(owner, viewer, rows):
    page = address(JoinToken, "changelist")
    chosen = {"action": "withdraw", "_selected_action": ["0" * 16]}
    viewer.user.is_staff = True
    viewer.user.save()
    viewer.client.post(page, chosen)
    assert JoinToken.objects.get(pk="0" * 16).expires_at.year == 2999
    owner.client.post(page, chosen)
    assert JoinToken.objects.get(pk="0" * 16).expires_at.year < 2999
    assert AuditLine.objects.filter(action="node.join-token", node_id_text="pc-3").count() == 1
