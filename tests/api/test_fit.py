"""``/api/nodes/{id}/fit`` and ``/api/placements``: numbers and reasons as JSON, and refusals with their codes."""

import json

import pytest

from models_app.models import Placement
from tests.pages import octo, seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]
DEFINITION = {
    "id": "another", "runtime": "vllm", "delivery": "container", "sources": [{"folder": "qwen3-14b"}],
    "contextLength": 8192,
}  # fmt: skip


@pytest.fixture
def fleet(db):
    octo.fleet()


def sent(person, path, body):
    answer = person.client.post(f"/api/{path}", json.dumps(body), content_type="application/json")
    return answer.status_code, answer.json()


def test_a_definition_is_judged_on_a_card_with_every_number(fleet, operator):
    card = seed.gpu_uuid("octo", 1)
    status, body = sent(operator, "nodes/octo/fit", {"definition": DEFINITION, "gpuUuids": [card]})
    assert status == 200
    assert (body["nodeId"], body["gpuUuids"], body["state"]) == ("octo", [card], "does_not_fit")
    line, host = body["lines"]
    assert (line["name"], line["gpuUuid"], line["reserveBytes"]) == ("GPU 1", card, 2 * octo.GIB)
    assert line["usableBytes"] == line["freeBytes"] - line["reserveBytes"]
    assert line["headroomBytes"] == line["usableBytes"] - line["neededBytes"] < 0
    assert (host["gpuUuid"], host["neededBytes"], host["state"]) == (None, 6 * octo.GIB, "fits")
    assert {part["name"] for part in body["parts"]} == {"weights", "cache", "buffers", "engine"}
    assert {"name": "Context", "value": "8192 tokens", "readFrom": "the model's settings"} in body["inputs"]
    assert body["telemetryAgeSeconds"] <= 5
    assert body["tokenBytes"] == 2 * 8 * 128 * 2 * 40


def test_a_stored_model_is_judged_where_it_stands(fleet, viewer):
    answer = viewer.client.get("/api/nodes/octo/fit?modelId=qwen3-14b")
    assert answer.status_code == 200
    body = answer.json()
    assert body["gpuUuids"][1] == "GPU-00000000-9999"
    assert [problem["code"] for problem in body["problems"]] == ["gpu_unknown"]
    other = viewer.client.get(f"/api/nodes/octo/fit?modelId=qwen3-14b&gpu={seed.gpu_uuid('octo', 4)}").json()
    assert other["state"] == "fits"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("nodes/nobody/fit", {"definition": DEFINITION}, 404, "not_found"),
        ("nodes/octo/fit", {"modelId": "nobody"}, 404, "not_found"),
        ("nodes/octo/fit", {}, 400, "invalid_request"),
        ("nodes/octo/fit", {"modelId": "qwen3-14b", "definition": DEFINITION}, 400, "invalid_request"),
        ("nodes/octo/fit", {"definition": {"id": "x"}}, 400, "invalid_request"),
        ("nodes/octo/fit", {"definition": DEFINITION, "gpuUuids": "GPU"}, 400, "invalid_request"),
        ("nodes/octo/fit", [], 400, "invalid_request"),
        ("placements/plan", {}, 400, "invalid_request"),
        ("placements", {"modelId": "nobody"}, 404, "not_found"),
        ("placements", {"modelId": "qwen3-14b"}, 409, "invalid_state"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_code(fleet, operator, path, body, status, code):
    found = sent(operator, path, body)
    assert (found[0], found[1]["code"]) == (status, code)


def test_a_plan_tells_of_every_node(fleet, operator):
    status, body = sent(operator, "placements/plan", {"definition": DEFINITION})
    assert status == 200
    assert [choice["nodeId"] for choice in body["choices"]] == ["octo"]
    assert body["choices"][0]["why"][0] == "fits on GPU 4"
    assert {(item["nodeId"], item["code"]) for item in body["refusals"]} == {
        ("atlas", "memory_short"), ("borealis", "node_offline"), ("cirrus", "node_draining"),
        ("local", "runtime_unavailable"),
    }  # fmt: skip


def test_a_model_is_placed_where_the_plan_says(fleet, operator):
    Placement.objects.filter(model_id="qwen3-14b").delete()
    status, body = sent(operator, "placements", {"modelId": "qwen3-14b"})
    assert status == 201
    assert body["placement"]["nodeId"] == "octo"
    assert body["placement"]["gpuUuids"] == Placement.objects.get(model_id="qwen3-14b").gpu_uuids
    assert body["why"]


def test_without_a_place_the_problems_name_each_node(fleet, operator):
    from models_app.models import ModelDefinition

    Placement.objects.filter(model_id="qwen3-14b").delete()
    ModelDefinition.objects.filter(pk="qwen3-14b").update(gpu_memory_budget_bytes=900 * octo.GIB)
    status, body = sent(operator, "placements", {"modelId": "qwen3-14b"})
    assert (status, body["code"]) == (409, "no_place")
    assert {problem["field"] for problem in body["problems"]} == {"atlas", "borealis", "cirrus", "local", "octo"}
