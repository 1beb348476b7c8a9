"""``?node=``: which node acts, and with which code it is said that none can."""

import pytest

from nodes.models import Node
from tests.models_app.things import node

pytestmark = [pytest.mark.app, pytest.mark.django_db]

ASKS = ("/api/downloads", "/api/model-folders", "/api/model-folders/some/gguf")
"""Paths that are read from the node itself."""

CATALOG = "/api/catalog"
"""A path that is answered from the node's last report."""


@pytest.fixture
def fleet():
    node("pc-1")
    node("pc-2", reachability="offline")
    node("pc-3", lifecycle="pending")
    node("pc-4", lifecycle="revoked")


@pytest.mark.parametrize("path", [*ASKS, CATALOG])
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "node_required"),
        ("?node=", 400, "node_required"),
        ("?node=pc-9", 404, "not_found"),
        ("?node=pc-4", 404, "not_found"),
        ("?node=pc-3", 409, "invalid_state"),
    ],
)
def test_a_node_that_cannot_act_is_told_by_its_code(fleet, viewer, path, query, status, code):
    answer = viewer.client.get(path + query)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("path", ASKS)
def test_a_node_that_cannot_be_reached_is_unavailable(fleet, viewer, path):
    answer = viewer.client.get(f"{path}?node=pc-2")
    assert (answer.status_code, answer.json()["code"]) == (503, "node_offline")


def test_the_catalog_answers_for_a_node_that_cannot_be_reached(fleet, viewer):
    answer = viewer.client.get(f"{CATALOG}?node=pc-2")
    assert answer.status_code == 200
    assert answer.json()["nodeId"] == "pc-2"


def test_without_a_name_the_only_member_of_the_fleet_acts(fleet, viewer):
    Node.objects.filter(pk="pc-2").delete()
    assert viewer.client.get(CATALOG).json()["nodeId"] == "pc-1"
    Node.objects.filter(pk="pc-1").update(reachability="offline")
    for path in ASKS:
        assert viewer.client.get(path).json()["code"] == "node_offline"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/downloads"), ("POST", "/api/downloads/inspect"), ("DELETE", ASKS[1] + "/x")]
)
def test_a_change_says_the_same(fleet, operator, method, path):
    body = '{"repository": "a/b"}' if method == "POST" else ""
    for query, status, code in (
        ("", 400, "node_required"),
        ("?node=pc-9", 404, "not_found"),
        ("?node=pc-3", 409, "invalid_state"),
    ):
        answer = operator.client.generic(method, path + query, body, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (status, code), (path, query)
