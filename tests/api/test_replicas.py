"""``/api/models/{id}/replicas``: what stands where, and what may be added, started and removed."""

import json
from uuid import uuid4

import pytest

from agent.wire.capability import FabricCapability, Feature
from audit.models import AuditLine
from jobs.models import Operation
from models_app.models import Placement
from nodes.models import Node
from tests.models_app.things import capabilities, gpu, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

SHARDS = (Feature.LAUNCH_ENV, Feature.REPLICAS_SHARDS)


def on_fabric(node_id: str, *fabrics: str, **columns):
    listed = tuple(FabricCapability(name=name, adapters=("mlx5_0", "mlx5_1")) for name in fabrics)
    return node(node_id, caps=capabilities(fabrics=listed, features=SHARDS), **columns)


@pytest.fixture
def three(identity):
    for name in ("n0", "n1", "n2"):
        on_fabric(name, "ib-b")
    return placed("tiny", "n0")


def send(who, method, path, body=None):
    answer = who.client.generic(method, path, json.dumps(body or {}), content_type="application/json")
    return answer.status_code, answer.json() if answer.content else {}


def add(who, *nodes, model="tiny"):
    body = {"placements": [{"nodeId": name} for name in nodes]}
    return send(who, "POST", f"/api/models/{model}/replicas", body)


def test_a_replica_is_added_listed_and_removed(operator, three):
    status, made = add(operator, "n1", "n2")
    assert (status, made["nodeIds"], made["shards"], made["shardsReady"]) == (201, ["n1", "n2"], 2, 0)
    assert [(one["nodeId"], one["shard"], one["shards"]) for one in made["placements"]] == [("n1", 0, 2), ("n2", 1, 2)]
    _, model = send(operator, "GET", "/api/models/tiny")
    assert [replica["nodeIds"] for replica in model["replicas"]] == [["n0"], ["n1", "n2"]]
    assert model["placement"]["nodeId"] == "n0"
    assert send(operator, "GET", f"/api/models/tiny/replicas/{made['id']}")[1]["id"] == made["id"]
    assert send(operator, "DELETE", f"/api/models/tiny/replicas/{made['id']}")[0] == 204
    assert Placement.objects.get() == three
    assert set(AuditLine.objects.filter(action="model.unplace").values_list("node_id_text", flat=True)) == {"n1", "n2"}


def test_a_model_may_be_created_on_several_nodes_at_once(operator, three):
    body = {"id": "huge", "runtime": "sim", "delivery": "process"}
    seats = [{"nodeId": "n1"}, {"nodeId": "n2"}]
    status, made = send(operator, "POST", "/api/models", {**body, "placements": seats})
    assert (status, [one["nodeId"] for one in made["placements"]]) == (201, ["n1", "n2"])
    assert (made["placement"]["nodeId"], made["placement"]["shards"], len(made["replicas"])) == ("n1", 2, 1)
    status, refused = send(operator, "POST", "/api/models", {**body, "placements": seats, "placement": seats[0]})
    assert (status, refused["problems"][0]["code"]) == (400, "placement_twice")
    status, refused = send(operator, "PUT", "/api/models/huge", {**body, "placements": seats})
    assert (status, refused["problems"][0]["code"]) == (400, "use_replicas")
    assert send(operator, "PUT", "/api/models/huge", {**body, "placements": []})[0] == 200
    other = {**body, "runtime": "llama.cpp", "sources": [{"folder": "x", "file": "x.gguf"}]}
    status, refused = send(operator, "PUT", "/api/models/huge", other)
    assert (status, refused["problems"][0]["code"]) == (400, "runtime_unavailable")
    assert "n1, n2" in refused["detail"]


def problem(answer) -> str:
    status, body = answer
    assert (status, body["code"]) == (400, "placement_invalid"), body
    assert body["problems"][0]["message"] == body["detail"]
    return body["problems"][0]["code"]


def test_nodes_that_share_no_fabric_hold_no_replica_together(operator, three):
    on_fabric("island")
    on_fabric("other", "ib-a")
    answer = add(operator, "n1", "island")
    assert problem(answer) == "no_shared_fabric"
    assert "island" in answer[1]["detail"]
    assert "--fabric" in answer[1]["detail"]
    answer = add(operator, "n1", "other")
    assert problem(answer) == "no_shared_fabric"
    assert "n1: ib-b; other: ib-a" in answer[1]["detail"]
    assert add(operator, "island")[0] == 201, "alone it may"


def test_a_fabric_that_is_down_on_a_node_is_not_shared(operator, three):
    broken = FabricCapability(name="ib-b", adapters=("mlx5_0",), problem="The adapter mlx5_0 is not up.")
    node("down", caps=capabilities(fabrics=(broken,), features=SHARDS))
    assert problem(add(operator, "n1", "down")) == "no_shared_fabric"


def test_rules_of_a_replica_on_several_nodes(operator, three):
    assert problem(add(operator, "n1", "n1")) == "node_duplicate"
    assert problem(add(operator, "n1", "n0")) == "node_taken"
    assert problem(add(operator, "n1", "nowhere")) == "node_unknown"
    node("old", caps=capabilities(fabrics=(FabricCapability(name="ib-b", adapters=("a",)),)))
    assert problem(add(operator, "n1", "old")) == "runtime_unavailable"
    assert send(operator, "POST", "/api/models/tiny/replicas", {"placements": []})[0] == 400
    assert Placement.objects.count() == 1


def test_llama_cpp_runs_on_one_node(operator, three):
    placed("gguf", "n0", runtime="llama.cpp", sources=[{"folder": "gguf", "file": "a.gguf"}])
    answer = add(operator, "n1", "n2", model="gguf")
    assert problem(answer) == "runtime_unavailable"
    assert "llama.cpp cannot run on several nodes" in answer[1]["detail"]


def test_shards_take_as_many_gpus_each(operator, identity):
    cards = [gpu(f"GPU-{number}") for number in range(3)]
    fabric = (FabricCapability(name="ib-b", adapters=("mlx5_0", "mlx5_1")),)
    for name, count in (("n0", 3), ("n1", 3), ("n2", 3)):
        caps = capabilities(*cards[:count], fabrics=fabric, features=(*SHARDS, Feature.GPUS_UUIDS))
        node(name, caps=caps)
    placed("tiny", "n0", placement={"nodeId": "n0", "gpuUuids": ["GPU-0"]})
    seats = [{"nodeId": "n1", "gpuUuids": ["GPU-0", "GPU-1"]}, {"nodeId": "n2", "gpuUuids": ["GPU-0"]}]
    assert (
        problem(send(operator, "POST", "/api/models/tiny/replicas", {"placements": seats})) == "gpu_capacity_mismatch"
    )
    seats[1]["gpuUuids"].append("GPU-2")
    assert send(operator, "POST", "/api/models/tiny/replicas", {"placements": seats})[0] == 201


def test_the_last_replica_is_not_removed_and_none_that_runs(operator, three):
    path = f"/api/models/tiny/replicas/{three.replica}"
    status, body = send(operator, "DELETE", path)
    assert (status, body["code"]) == (400, "use_unplace")
    _, made = add(operator, "n1")
    Placement.objects.filter(node_id_text="n1").update(desired="running", observed="ready")
    status, body = send(operator, "DELETE", f"/api/models/tiny/replicas/{made['id']}")
    assert (status, body["code"]) == (409, "invalid_state")
    assert "stop it first" in body["detail"]
    assert send(operator, "DELETE", f"/api/models/tiny/replicas/{uuid4()}")[0] == 404
    assert Placement.objects.count() == 2


def test_a_start_lists_an_operation_for_each_placement_and_what_it_left_out(operator, three):
    add(operator, "n1")
    add(operator, "n2")
    Node.objects.filter(pk="n2").update(reachability="offline")
    status, body = send(operator, "POST", "/api/models/tiny/start")
    assert (status, body["nodeId"]) == (202, "n0")
    assert [one["nodeId"] for one in body["operations"]] == ["n0", "n1"]
    assert body["operations"][0]["id"] == body["id"]
    assert [(one["nodeIds"], one["code"]) for one in body["skipped"]] == [(["n2"], "node_offline")]
    again = send(operator, "POST", "/api/models/tiny/start")[1]
    assert [one["id"] for one in again["operations"]] == [one["id"] for one in body["operations"]]


def test_one_replica_is_started_and_stopped_by_itself(operator, three):
    _, made = add(operator, "n1", "n2")
    status, body = send(operator, "POST", f"/api/models/tiny/replicas/{made['id']}/start")
    assert (status, [one["nodeId"] for one in body["operations"]]) == (202, ["n1", "n2"])
    assert set(Placement.objects.filter(desired="running").values_list("node_id_text", flat=True)) == {"n1", "n2"}
    status, body = send(operator, "POST", f"/api/models/tiny/replicas/{made['id']}/stop")
    assert status == 202
    assert Operation.objects.filter(cancel_requested_at__isnull=False).count() == 2
    assert not Placement.objects.filter(desired="running").exists()


def test_the_shards_of_a_replica_start_all_or_not_at_all(operator, three):
    _, made = add(operator, "n1", "n2")
    Node.objects.filter(pk="n2").update(reachability="offline")
    status, body = send(operator, "POST", f"/api/models/tiny/replicas/{made['id']}/start")
    assert (status, body["code"]) == (503, "node_offline")
    assert not Operation.objects.exists()
    assert not Placement.objects.filter(desired="running").exists()


def test_a_replica_that_lacks_a_shard_is_not_started_and_says_so(operator, three):
    _, made = add(operator, "n1", "n2")
    Placement.objects.filter(node_id_text="n2").delete()
    status, body = send(operator, "POST", f"/api/models/tiny/replicas/{made['id']}/start")
    assert (status, body["code"]) == (409, "invalid_state")
    assert "1 of its 2 shards" in body["detail"]
    _, model = send(operator, "GET", "/api/models/tiny")
    assert model["replicas"][1]["state"]["name"] == "failed"


def test_the_status_and_the_lists_speak_of_every_replica(operator, three):
    add(operator, "n1")
    Placement.objects.filter(node_id_text="n1").update(desired="running", observed="ready")
    _, status = send(operator, "GET", "/api/status")
    (model,) = status["models"]
    assert (model["state"], model["serves"], model["nodeId"], model["nodeIds"]) == ("ready", True, "n0", ["n0", "n1"])
