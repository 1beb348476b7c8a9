"""Operations on ``/api``: found by what they concern, told with what they wait for, ended while they can be."""

import json

import pytest

from audit.models import AuditLine
from jobs.models import Operation
from jobs.requests import model_runs, moves
from mirbad.kernel import clock
from nodes.models import Node
from tests.models_app.things import PERSON, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _machines(db) -> None:
    node("pc-1")
    node("pc-2")
    placed("one")
    placed("two", "pc-2")


def ids(client, query: str = "") -> list[str]:
    answer = client.get(f"/api/operations?{query}")
    assert answer.status_code == 200
    return [item["id"] for item in answer.json()["items"]]


def send(client, method: str, url: str, body: object = None):
    return client.generic(method, url, json.dumps(body or {}), content_type="application/json")


def test_operations_are_found_by_node_model_kind_and_whether_they_are_over(viewer):
    start = model_runs.start("two", PERSON)
    move = moves.request("one", "pc-2", (), PERSON)
    Operation.objects.filter(pk=start.pk).update(finished_at=clock.now(), outcome="failed")
    assert set(ids(viewer.client)) == {start.pk, move.pk}
    assert ids(viewer.client, "open=true") == [move.pk]
    assert ids(viewer.client, "finished=true") == [start.pk]
    assert ids(viewer.client, "outcome=failed") == [start.pk]
    assert ids(viewer.client, "kind=move") == [move.pk]
    assert ids(viewer.client, "modelId=two") == [start.pk]
    assert ids(viewer.client, "nodeId=pc-1") == [move.pk], "it leaves that node"
    assert set(ids(viewer.client, "nodeId=pc-2")) == {start.pk, move.pk}
    assert ids(viewer.client, "limit=1") == [max(start.pk, move.pk)]


@pytest.mark.parametrize("query", ["outcome=nonsense", "open=perhaps", "finished=1", "limit=0", "kind=%00"])
def test_a_question_that_cannot_be_is_refused(viewer, query):
    answer = viewer.client.get(f"/api/operations?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_an_operation_says_what_it_waits_for_and_whether_it_can_be_ended(viewer):
    start = model_runs.start("one", PERSON)
    told = viewer.client.get(f"/api/operations/{start.pk}").json()
    assert (told["waitsFor"], told["canCancel"]) == ("Starting now.", True)
    Operation.objects.filter(pk=start.pk).update(finished_at=clock.now(), outcome="succeeded")
    told = viewer.client.get(f"/api/operations/{start.pk}").json()
    assert (told["waitsFor"], told["canCancel"]) == ("", False)


def test_what_has_no_way_back_is_not_ended(operator):
    move = moves.request("one", "pc-2", (), PERSON)
    assert send(operator.client, "DELETE", f"/api/operations/{move.pk}").status_code == 202
    Operation.objects.filter(pk=move.pk).update(cancel_requested_at=None, stage="placement-committed")
    told = operator.client.get(f"/api/operations/{move.pk}").json()
    assert told["canCancel"] is False
    refused = send(operator.client, "DELETE", f"/api/operations/{move.pk}")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")


def test_a_drain_alone_answers_with_the_node(operator):
    answer = send(operator.client, "POST", "/api/nodes/pc-1/drain")
    assert (answer.status_code, answer.json()["draining"]) == (200, True)
    assert not Operation.objects.exists()


def test_a_drain_with_evacuation_is_an_operation_that_can_be_followed_and_ended(operator, viewer):
    answer = send(operator.client, "POST", "/api/nodes/pc-1/drain", {"evacuate": True})
    assert answer.status_code == 202
    told = answer.json()
    assert (told["kind"], told["nodeId"], told["stage"], told["canCancel"]) == ("evacuate", "pc-1", "moving", True)
    assert answer["Location"].endswith(f"/api/operations/{told['id']}")
    again = send(operator.client, "POST", "/api/nodes/pc-1/drain", {"evacuate": True})
    assert again.json()["id"] == told["id"]
    assert viewer.client.get("/api/nodes/pc-1").json()["draining"] is True
    assert send(operator.client, "DELETE", f"/api/operations/{told['id']}").status_code == 202
    assert send(viewer.client, "POST", "/api/nodes/pc-1/drain", {"evacuate": True}).status_code == 403


@pytest.mark.parametrize("body", [{"evacuate": "perhaps"}, {"evacuate": None}, [], "x"])
def test_a_drain_that_cannot_be_read_changes_nothing(operator, body):
    answer = operator.client.generic("POST", "/api/nodes/pc-1/drain", json.dumps(body), content_type="application/json")
    assert answer.status_code == 400
    assert not Node.objects.filter(draining=True).exists()


def test_the_drain_of_a_node_that_waits_for_approval_is_refused_with_a_line(operator):
    Node.objects.filter(pk="pc-1").update(lifecycle="pending")
    answer = send(operator.client, "POST", "/api/nodes/pc-1/drain", {"evacuate": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert AuditLine.objects.filter(action="node.drain", result="refused").count() == 1
