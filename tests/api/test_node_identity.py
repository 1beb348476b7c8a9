"""``/api/nodes/{id}``: its revoke, the rotation of its key, its return; with the codes that scripts look for."""

import json

import pytest

from audit.models import AuditLine
from jobs.models import Operation
from mirbad.accounts import people
from models_app import holds
from nodes.models import Node, NodePin

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def send(client, method, path, body=None):
    return client.generic(method, path, json.dumps(body if body is not None else {}), content_type="application/json")


@pytest.fixture
def pinned(fleet, identity):
    NodePin.objects.create(node=fleet.node, slot="current", spki_sha256="cd" * 32)
    return fleet


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "confirmation_required"),
        ({"confirm": "pc-2", "unplaceModels": True}, "confirmation_required"),
        ({"confirm": "pc-1"}, "models_placed"),
    ],
)
def test_a_revoke_is_refused_with_its_code(pinned, owner, body, code):
    refused = send(owner.client, "DELETE", "/api/nodes/pc-1", body)
    assert (refused.status_code, refused.json()["code"]) == (409, code)
    assert not Node.objects.get(pk="pc-1").draining
    line = AuditLine.objects.get(action="node.revoke")
    assert (line.result, line.error_code, line.node_id_text) == ("refused", code, "pc-1")


def test_a_held_model_refuses_a_revoke(pinned, owner):
    holds.take("small", "job", "job-1", "a benchmark on node pc-1")
    refused = send(owner.client, "DELETE", "/api/nodes/pc-1", {"confirm": "pc-1", "unplaceModels": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "model_busy")


def test_a_revoke_is_taken_on(pinned, owner):
    taken = send(owner.client, "DELETE", "/api/nodes/pc-1", {"confirm": "pc-1", "unplaceModels": True})
    assert (taken.status_code, taken.json()["kind"]) == (202, "revoke")
    assert taken["Location"].endswith(taken.json()["id"])
    again = send(owner.client, "DELETE", "/api/nodes/pc-1", {"confirm": "pc-1", "unplaceModels": True})
    assert again.json()["id"] == taken.json()["id"]
    assert owner.client.get("/api/nodes/pc-1").json()["draining"] is True


def test_a_revoked_node_is_listed_only_when_asked_for(pinned, owner):
    Node.objects.filter(pk="pc-1").update(lifecycle="revoked")
    assert [row["id"] for row in owner.client.get("/api/nodes").json()["items"]] == ["pc-2"]
    rows = owner.client.get("/api/nodes?includeRevoked=true").json()["items"]
    assert {row["id"]: row["state"] for row in rows} == {"pc-1": "Revoked", "pc-2": "PendingApproval"}
    refused = send(owner.client, "DELETE", "/api/nodes/pc-1", {"confirm": "pc-1"})
    assert (refused.status_code, refused.json()["code"]) == (409, "node_revoked")


def test_a_rotation_is_taken_on_for_a_node_that_serves(pinned, operator):
    taken = send(operator.client, "POST", "/api/nodes/pc-1/rotate-cert")
    assert (taken.status_code, taken.json()["kind"]) == (202, "rotate-cert")
    assert send(operator.client, "POST", "/api/nodes/pc-1/rotate-cert").json()["id"] == taken.json()["id"]


@pytest.mark.parametrize(
    ("node_id", "columns", "status", "code"),
    [
        ("pc-2", {}, 409, "invalid_state"),
        ("pc-1", {"reachability": "offline"}, 503, "node_offline"),
        ("pc-1", {"reachability": "incompatible"}, 503, "node_incompatible"),
        ("pc-1", {"reachability": "fenced"}, 503, "node_pending_takeover"),
        ("pc-1", {"lifecycle": "revoked"}, 409, "node_revoked"),
        ("pc-9", {}, 404, "not_found"),
    ],
)
def test_a_rotation_of_a_node_that_does_not_serve_is_refused(pinned, operator, node_id, columns, status, code):
    Node.objects.filter(pk=node_id).update(**columns)
    refused = send(operator.client, "POST", f"/api/nodes/{node_id}/rotate-cert")
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert Operation.objects.filter(kind="rotate-cert").count() == 0


def test_only_an_expired_node_is_let_in_by_its_key_alone(pinned, owner):
    refused = send(owner.client, "POST", "/api/nodes/pc-1/readmit")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    NodePin.objects.filter(node_id="pc-1").update(cert_not_after="2020-01-01T00:00:00Z")
    Node.objects.filter(pk="pc-1").update(reachability="offline")
    assert send(owner.client, "POST", "/api/nodes/pc-1/readmit").status_code == 202


@pytest.mark.parametrize("path", ["/api/nodes/pc-1/rotate-cert", "/api/nodes/pc-1/readmit"])
def test_who_only_looks_changes_no_key(pinned, viewer, path):
    assert send(viewer.client, "POST", path).status_code == 403
    assert send(viewer.client, "DELETE", "/api/nodes/pc-1", {"confirm": "pc-1"}).status_code == 403


def test_without_log_in_nothing_that_needs_it_is_done(pinned, owner, monkeypatch):
    monkeypatch.setattr("mirbad.accounts.permissions.login_is_disabled", lambda: True)
    for method, path, body in (
        ("DELETE", "/api/nodes/pc-1", {"confirm": "pc-1"}),
        ("POST", "/api/nodes/pc-1/readmit", {}),
        ("POST", "/api/nodes/join-tokens", {"nodeId": "pc-7"}),
        ("POST", "/api/nodes/join-tokens", {"nodeId": "pc-1", "rekey": True}),
    ):
        refused = send(owner.client, method, path, body)
        assert (refused.status_code, refused.json()["code"]) == (403, "reauthentication_failed"), path
    assert people.login_is_disabled() is False


def test_the_waiting_key_and_the_renewal_are_told(pinned, viewer):
    NodePin.objects.create(node=pinned.node, slot="next", spki_sha256="ef" * 32)
    row = viewer.client.get("/api/nodes/pc-1").json()
    assert (row["spkiSha256"], row["nextSpkiSha256"], row["renewalAt"]) == ("cd" * 32, "ef" * 32, None)
