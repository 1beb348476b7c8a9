"""Moves and unplaces on ``/api``: shapes, codes, who may."""

import json

import pytest

from jobs import worker
from jobs.models import Operation
from models_app.models import ModelSource, Placement
from nodes.models import Node
from tests.jobs.conftest import agent, finish, pass_time  # noqa: F401  fixtures
from tests.jobs.moves.conftest import fleet, serving, until  # noqa: F401  fixtures

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def send(client, path, body=None):
    return client.post(path, json.dumps(body or {}), content_type="application/json")


def code(response):
    return response.status_code, response.json()["code"]


def test_a_move_is_asked_for_followed_and_done(owner, fleet, serving, finish):  # noqa: F811
    before = owner.client.get("/api/models/tiny/move").json()
    assert before == {"record": None, "canForceCommit": False, "forceCommitConsequence": "", "downloads": []}
    asked = send(owner.client, "/api/models/tiny/move", {"targetNodeId": "pc-2"})
    assert asked.status_code == 202
    assert asked["Location"].endswith("/api/models/tiny/move")
    record = asked.json()
    assert (record["sourceNodeId"], record["targetNodeId"], record["mode"]) == ("pc-1", "pc-2", "handover")
    assert (record["stage"], record["outcome"], record["canCancel"], record["running"]) == (
        "downloading",
        "open",
        True,
        True,
    )
    assert send(owner.client, "/api/models/tiny/move", {"targetNodeId": "pc-2"}).json()["id"] == record["id"]
    finish(record["id"])
    after = owner.client.get("/api/models/tiny/move").json()["record"]
    assert (after["id"], after["stage"], after["canCancel"]) == (record["id"], "done", False)
    assert owner.client.get("/api/models/tiny").json()["placement"]["nodeId"] == "pc-2"


def test_what_cannot_be_is_refused_with_its_code(owner, fleet, serving):  # noqa: F811
    def refused(**body):
        return code(send(owner.client, "/api/models/tiny/move", {"targetNodeId": "pc-2", **body}))

    assert refused(targetNodeId="pc-1") == (400, "invalid_request")
    assert refused(targetNodeId="pc-9") == (400, "placement_invalid")
    assert refused(gpuIndices=[3]) == (400, "placement_invalid")
    Node.objects.filter(pk="pc-2").update(draining=True)
    assert refused() == (409, "node_draining")
    Node.objects.filter(pk="pc-2").update(draining=False, reachability="offline")
    assert refused() == (503, "node_offline")
    Node.objects.filter(pk="pc-2").update(lifecycle="revoked")
    assert refused() == (409, "node_revoked")
    ModelSource.objects.create(model_id="tiny", folder="here")
    assert refused() == (409, "model_not_movable")
    assert code(send(owner.client, "/api/models/none/move", {"targetNodeId": "pc-2"})) == (404, "not_found")
    assert code(send(owner.client, "/api/models/tiny/move/cancel")) == (409, "invalid_state")
    assert owner.client.get("/api/models/none/move").status_code == 404
    assert not Operation.objects.filter(kind="move").exists()


def test_a_held_model_answers_with_the_holders_words(owner, fleet, serving):  # noqa: F811
    send(owner.client, "/api/models/tiny/move", {"targetNodeId": "pc-2"})
    for path in ("start", "stop", "restart", "unplace"):
        response = send(owner.client, f"/api/models/tiny/{path}")
        assert code(response) == (409, "model_busy")
        assert response.json()["detail"].startswith("Model 'tiny' is busy: a move to node pc-2 holds it.")


def test_a_source_is_given_up_by_its_id_alone(owner, fleet, serving, until):  # noqa: F811
    asked = send(owner.client, "/api/models/tiny/move", {"targetNodeId": "pc-2", "mode": "stop-first"}).json()
    until(Operation.objects.get(pk=asked["id"]), "stopping-source")
    force = "/api/models/tiny/move/force-commit"
    assert code(send(owner.client, force, {"confirm": "pc-2"})) == (409, "confirmation_required")
    assert code(send(owner.client, force, {"confirm": "pc-1"})) == (409, "invalid_state")
    fleet.lose("pc-1")
    worker.run(asked["id"])
    shown = owner.client.get("/api/models/tiny/move").json()
    assert shown["canForceCommit"]
    assert shown["forceCommitConsequence"].startswith("If pc-1 returns")
    assert shown["record"]["paused"]
    assert send(owner.client, force, {"confirm": "pc-1"}).status_code == 202


def test_an_unplace_waits_for_its_end_or_does_not(owner, fleet, serving, finish, monkeypatch):  # noqa: F811
    monkeypatch.setattr("jobs.requests.unplacing._MARGIN_SECONDS", -119.7)
    fleet.source.stubborn = True
    for sent in ({}, {"confirm": "other"}):
        assert code(send(owner.client, "/api/models/tiny/unplace", sent)) == (409, "confirmation_required")
    assert not Operation.objects.filter(kind="unplace").exists()
    late = send(owner.client, "/api/models/tiny/unplace", {"confirm": "tiny"})
    assert code(late) == (504, "stop_timeout")
    assert Placement.objects.exists()
    operation = Operation.objects.get(kind="unplace")
    at_once = send(owner.client, "/api/models/tiny/unplace", {"wait": False, "confirm": "tiny"})
    assert (at_once.status_code, at_once.json()["id"]) == (202, operation.pk)
    finish(operation.pk, steps=100)
    fleet.source.engines.clear()
    again = send(owner.client, "/api/models/tiny/unplace", {"wait": False, "confirm": "tiny"}).json()
    finish(again["id"])
    assert owner.client.get("/api/models/tiny").json()["placement"] is None
    assert code(send(owner.client, "/api/models/tiny/unplace")) == (409, "invalid_state")
