"""``/api/fencing``: who commands, taking over, and continuing for one node."""

import json

import pytest

from audit.models import AuditLine
from jobs.models import Operation
from mirbad.accounts import people
from nodes import fencing
from nodes.models import MasterIdentity, Node

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PHRASE = "the previous master is stopped"


def post(client, path, body):
    return client.post(f"/api/fencing/{path}", json.dumps(body), content_type="application/json")


@pytest.fixture
def taken(fleet, identity):
    """A node that came back under another master after a takeover."""
    MasterIdentity.objects.update(epoch=5, takeover_id="op-earlier")
    Node.objects.filter(pk="pc-1").update(
        reachability="fenced",
        reachability_reason="It obeys another master (epoch 7).",
        held_epoch=7,
        held_instance="0123456789abcdef",
        takeover_id="op-earlier",
        takeover_epoch=5,
    )
    return {"nodeId": "pc-1", "takeoverId": "op-earlier", "agentEpoch": 7, "confirm": "pc-1"}


def test_a_takeover_is_accepted_with_its_operation(operator, fleet, identity):
    fencing.fence("Node pc-1 obeys another master.")
    answer = post(operator.client, "takeover", {"confirm": PHRASE})
    operation = Operation.objects.get(kind="takeover")
    assert (answer.status_code, answer.json()["id"]) == (202, operation.pk)
    assert answer["Location"].endswith(f"/api/operations/{operation.pk}")
    assert post(operator.client, "takeover", {"confirm": PHRASE}).json()["id"] == operation.pk
    assert AuditLine.objects.get(action="fencing.takeover").result == "accepted"


@pytest.mark.parametrize("confirm", ["", "yes", "The previous master is stopped", "the previous master"])
def test_the_phrase_has_to_be_typed(operator, identity, confirm):
    answer = post(operator.client, "takeover", {"confirm": confirm})
    assert (answer.status_code, answer.json()["code"]) == (409, "confirmation_required")
    line = AuditLine.objects.get(action="fencing.takeover")
    assert (line.result, line.error_code) == ("refused", "confirmation_required")
    assert not Operation.objects.filter(kind="takeover").exists()


@pytest.mark.parametrize("body", [{}, {"confirm": 1, "more": 2}, [], {"confirm": None}])
def test_a_body_that_is_none_is_refused(operator, identity, body):
    assert post(operator.client, "takeover", body).status_code == 400
    assert post(operator.client, "takeover/continue", body).status_code == 400


@pytest.mark.parametrize("path", ["takeover", "takeover/continue"])
def test_without_log_in_or_with_a_lesser_token_nobody_takes_over(path, operator, with_token, taken, monkeypatch):
    body = {"confirm": PHRASE} if path == "takeover" else taken
    answer = post(with_token("operator"), path, body)
    assert (answer.status_code, answer.json()["code"]) == (403, "reauthentication_failed")
    monkeypatch.setattr("mirbad.accounts.permissions.login_is_disabled", lambda: True)
    answer = post(operator.client, path, body)
    assert (answer.status_code, answer.json()["code"]) == (403, "reauthentication_failed")
    assert people.login_is_disabled() is False
    assert {line.error_code for line in AuditLine.objects.filter(action__startswith="fencing.")} == {
        "reauthentication_failed"
    }


def test_an_owners_token_takes_over(with_token, owner, identity):
    assert post(with_token("owner", owner.user), "takeover", {"confirm": PHRASE}).status_code == 202


def test_fencing_shows_what_a_continuation_has_to_name(viewer, taken):
    answer = viewer.client.get("/api/fencing").json()
    node = next(node for node in answer["nodes"] if node["nodeId"] == "pc-1")
    assert (answer["state"], answer["epoch"], answer["takeoverId"]) == ("commanding", 5, "op-earlier")
    assert node == {
        "nodeId": "pc-1",
        "state": "PendingTakeover",
        "reasons": ["It obeys another master (epoch 7)."],
        "agentEpoch": 7,
        "agentInstance": "0123456789abcdef",
        "takeoverId": "op-earlier",
        "continuable": True,
    }


def test_an_owner_has_the_master_stand_down(owner, operator, viewer, stranger, anybody, with_token, fleet, identity):
    body = {"confirm": "this master stands down"}
    for person in (operator, viewer, stranger):
        assert post(person.client, "stand-down", body).status_code == 403
    assert post(anybody, "stand-down", body).status_code == 401
    assert post(with_token("operator"), "stand-down", body).status_code == 403
    wrong = post(owner.client, "stand-down", {"confirm": "yes"})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "confirmation_required")
    for bad in ({}, [], {"confirm": None}, {"confirm": "x", "more": 1}):
        assert post(owner.client, "stand-down", bad).status_code == 400
    assert viewer.client.get("/api/fencing").json()["stoodDownAt"] is None
    for _ in range(2):
        answer = post(owner.client, "stand-down", body)
        assert (answer.status_code, answer.json()["state"], answer.json()["fenced"]) == (200, "fenced", True)
        assert "owner (owner) decided" in answer.json()["reason"]
    assert viewer.client.get("/api/fencing").json()["stoodDownAt"] is not None
    refused = post(operator.client, "takeover", {"confirm": PHRASE})
    assert (refused.status_code, refused.json()["code"]) == (409, "master_fenced")
    assert "Only an owner" in refused.json()["detail"]
    assert post(owner.client, "takeover", {"confirm": PHRASE}).status_code == 202


def test_a_fenced_master_says_so_and_refuses_writes(viewer, operator, fleet, identity):
    fencing.fence("Node pc-1 obeys another master.")
    answer = viewer.client.get("/api/fencing").json()
    assert (answer["state"], answer["fenced"], answer["reason"]) == (
        "fenced",
        True,
        "Node pc-1 obeys another master.",
    )
    refused = operator.client.post("/api/models/small/start", "{}", content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (409, "master_fenced")


def test_a_continuation_is_accepted_for_exactly_what_was_shown(operator, taken):
    for wrong, code in (
        ({"confirm": "pc-2"}, "confirmation_required"),
        ({"agentEpoch": 6}, "invalid_state"),
        ({"takeoverId": "op-another"}, "invalid_state"),
        ({"nodeId": "pc-2", "confirm": "pc-2"}, "invalid_state"),
    ):
        answer = post(operator.client, "takeover/continue", {**taken, **wrong})
        assert (answer.status_code, answer.json()["code"]) == (409, code), wrong
    missing = post(operator.client, "takeover/continue", {**taken, "nodeId": "none", "confirm": "none"})
    assert missing.status_code == 404
    answer = post(operator.client, "takeover/continue", taken)
    assert (answer.status_code, answer.json()["kind"], answer.json()["nodeId"]) == (202, "continuation", "pc-1")
    results = AuditLine.objects.filter(action="fencing.continue").values_list("result", flat=True)
    assert sorted(results) == ["accepted", *["refused"] * 5]
