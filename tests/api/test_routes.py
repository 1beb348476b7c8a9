"""The routes: nodes, models, operations, keys, audit, status, health; and the cost of lists."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from audit import log
from audit.models import AuditLine
from mirbad.accounts import people
from mirbad.kernel import actor
from mirbad.kernel.errors import Unavailable
from mirbad.tasking import heartbeat
from models_app.models import ModelDefinition
from nodes.models import Node
from tests.api.conftest import SPKI, make_fleet

pytestmark = [pytest.mark.app, pytest.mark.django_db]

LISTS = [
    "/api/nodes",
    "/api/models",
    "/api/operations",
    "/api/keys",
    "/api/tokens",
    "/api/audit",
    "/api/status",
    "/api/fencing",
]


def send(client, method, path, body=None):
    return client.generic(method, path, json.dumps(body if body is not None else {}), content_type="application/json")


@pytest.mark.parametrize("path", LISTS)
def test_a_list_costs_the_same_for_many_rows_as_for_few(path, owner, identity):
    def cost():
        with CaptureQueriesContext(
            connection,
        ) as queries:
            response = owner.client.get(path)
        assert response.status_code == 200, response.content
        return len(queries)

    make_fleet("-a")
    log.record("job", actor.CONFIG)
    send(owner.client, "POST", "/api/tokens", {"name": "a", "role": "viewer"})
    few = cost()
    for number in range(8):
        make_fleet(f"-b{number}")
        log.record("job", actor.CONFIG)
        send(owner.client, "POST", "/api/tokens", {"name": "b", "role": "viewer"})
    assert cost() == few


def test_a_list_is_read_page_by_page(viewer):
    for number in range(5):
        make_fleet(f"-{number}")
    seen, address = [], "/api/models?limit=2"
    while address:
        page = viewer.client.get(address).json()
        assert page["count"] == 5
        seen += [item["id"] for item in page["items"]]
        address = page["next"]
    assert seen == [f"small-{number}" for number in range(5)]


def test_a_node_reads_in_camel_case_with_its_state_and_unknown_as_null(viewer, fleet):
    node = viewer.client.get("/api/nodes/pc-1").json()
    assert node["state"] == "Online"
    assert node["gpus"][0]["memoryBytes"] is None
    assert node["lastSeenAt"] is None
    assert "displayName" in node
    waiting = viewer.client.get("/api/nodes/pc-2").json()
    assert (waiting["state"], waiting["pendingSpkiSha256"], waiting["spkiSha256"]) == ("PendingApproval", SPKI, None)


def test_revoked_nodes_are_shown_only_when_asked_for(viewer, fleet):
    Node.objects.filter(pk="pc-1").update(lifecycle="revoked")
    assert [node["id"] for node in viewer.client.get("/api/nodes").json()["items"]] == ["pc-2"]
    everything = viewer.client.get("/api/nodes?includeRevoked=true").json()["items"]
    assert [(node["id"], node["state"]) for node in everything] == [("pc-1", "Revoked"), ("pc-2", "PendingApproval")]
    assert viewer.client.get("/api/nodes?includeRevoked=yes").json()["code"] == "invalid_request"


def test_approval_takes_exactly_the_key_that_was_seen(operator, fleet, identity):
    other = send(operator.client, "POST", "/api/nodes/pc-2/approve", {"expectedSpkiSha256": "cd" * 32})
    assert (other.status_code, other.json()["code"]) == (409, "invalid_state")
    right = send(operator.client, "POST", "/api/nodes/pc-2/approve", {"expectedSpkiSha256": SPKI})
    assert right.status_code == 200
    assert right.json()["lifecycle"] == "approved"
    results = list(AuditLine.objects.filter(action="node.approve").order_by("id").values_list("result", "node_id_text"))
    assert results == [("refused", "pc-2"), ("succeeded", "pc-2")]


def test_a_node_is_drained_and_undrained(operator, fleet, identity):
    assert send(operator.client, "POST", "/api/nodes/pc-1/drain").json()["draining"] is True
    assert send(operator.client, "POST", "/api/nodes/pc-1/undrain").json()["draining"] is False


def test_settings_of_a_node_change_one_by_one(operator, fleet, identity):
    answer = send(operator.client, "PATCH", "/api/nodes/pc-1", {"displayName": "The big one"})
    assert answer.json()["displayName"] == "The big one"
    assert answer.json()["address"] == "192.0.2.10"
    wrong = send(operator.client, "PATCH", "/api/nodes/pc-1", {"maxConcurrentStarts": 0})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_request")


def test_a_join_token_is_made_once_and_never_kept_by_a_cache(operator, identity):
    answer = send(operator.client, "POST", "/api/nodes/join-tokens", {"nodeId": "pc-9", "ttlMinutes": 10})
    assert answer.status_code == 201, answer.content
    assert answer["Cache-Control"] == "no-store"
    command = answer.json()
    secret = command["token"].partition(".")[2]
    assert secret not in command["commands"]["linux"]
    assert secret not in str(list(AuditLine.objects.values()))
    assert set(command) == {
        "nodeId", "token", "caHash", "enrollUrl", "expiresAt", "purpose", "commands", "agentDownload",
    }  # fmt: skip
    assert send(operator.client, "DELETE", "/api/nodes/pc-9/join-tokens").json() == {"withdrawn": 1}


@pytest.mark.parametrize(
    "body", [{"nodeId": "Bad Name"}, {"nodeId": "pc-9", "ttlMinutes": 9}, {"nodeId": "join-tokens"}]
)
def test_a_join_token_that_breaks_a_rule_is_refused(operator, identity, body):
    answer = send(operator.client, "POST", "/api/nodes/join-tokens", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_join_tokens_are_refused_while_log_in_is_disabled(operator, with_token, identity, monkeypatch):
    off = people.settings().model_copy(update={"admin_password": ""})
    monkeypatch.setattr(people, "settings", lambda: off)
    for client in (operator.client, with_token("owner")):
        answer = send(client, "POST", "/api/nodes/join-tokens", {"nodeId": "pc-9"})
        assert (answer.status_code, answer.json()["code"]) == (403, "reauthentication_failed")
    line = AuditLine.objects.filter(action="node.join-token").first()
    assert (line.result, line.error_code) == ("refused", "reauthentication_failed")


def test_a_token_needs_the_role_owner_for_a_join_token(with_token, identity):
    answer = send(with_token("operator"), "POST", "/api/nodes/join-tokens", {"nodeId": "pc-9"})
    assert answer.json()["code"] == "reauthentication_failed"


MODEL = {"id": "fresh", "runtime": "sim", "delivery": "process", "secretEnv": {"HF_TOKEN": "canary-in-the-mine"}}


def test_a_model_is_made_read_saved_and_deleted(operator):
    made = send(operator.client, "POST", "/api/models", MODEL)
    assert made.status_code == 201, made.content
    assert made["Location"].endswith("/api/models/fresh")
    model = made.json()
    assert (model["state"]["name"], model["placement"]) == ("unplaced", None)
    saved = send(operator.client, "PUT", "/api/models/fresh", {**MODEL, "displayName": "Fresh"})
    assert saved.json()["displayName"] == "Fresh"
    assert operator.client.delete("/api/models/fresh").status_code == 204
    assert operator.client.get("/api/models/fresh").json()["code"] == "not_found"
    actions = list(AuditLine.objects.order_by("id").values_list("action", "model_id_text", "result"))
    assert actions == [(f"model.{verb}", "fresh", "succeeded") for verb in ("create", "update", "delete")]


def test_a_secret_of_a_model_is_never_shown(operator):
    send(operator.client, "POST", "/api/models", MODEL)
    for path in ("/api/models", "/api/models/fresh", "/api/audit"):
        assert "canary" not in operator.client.get(path).content.decode()
    assert operator.client.get("/api/models/fresh").json()["secretEnvNames"] == ["HF_TOKEN"]
    assert "canary" not in str(list(ModelDefinition.objects.values()))


@pytest.mark.parametrize("model_id", ["a/b", "..", "A", "", "x" * 65])
def test_a_model_of_a_bad_name_is_refused_by_field(operator, model_id):
    answer = send(operator.client, "POST", "/api/models", {**MODEL, "id": model_id})
    assert answer.status_code == 400
    assert answer.json()["problems"][0]["field"] == "id"


def test_a_start_is_202_with_the_operation_and_the_same_one_when_asked_again(operator, fleet):
    fleet.operation.delete()
    first = send(operator.client, "POST", "/api/models/small/start")
    assert first.status_code == 202, first.content
    operation = first.json()
    assert first["Location"].endswith(f"/api/operations/{operation['id']}")
    assert send(operator.client, "POST", "/api/models/small/start").json()["id"] == operation["id"]
    detail = operator.client.get(f"/api/operations/{operation['id']}").json()
    assert detail["outcome"] == "open"
    assert detail["events"][0]["text"]
    line = AuditLine.objects.filter(action="model.start").first()
    assert (line.result, line.operation_id_text) == ("accepted", operation["id"])


def test_a_start_on_a_node_that_is_away_says_which_and_when_to_come_back(operator, fleet):
    fleet.operation.delete()
    Node.objects.filter(pk="pc-1").update(reachability="offline")
    answer = send(operator.client, "POST", "/api/models/small/start")
    assert (answer.status_code, answer.json()["code"]) == (503, "node_offline")
    assert int(answer["Retry-After"]) > 0
    assert "pc-1" in answer.json()["detail"]
    assert AuditLine.objects.filter(action="model.start", error_code="node_offline").count() == 1


def test_an_operation_is_cancelled_by_delete(operator, fleet):
    answer = operator.client.delete(f"/api/operations/{fleet.operation.pk}")
    assert answer.status_code == 202
    assert answer.json()["cancelRequestedAt"]


def test_operations_are_found_by_model_node_and_openness(viewer, fleet):
    def ids(query):
        return [item["id"] for item in viewer.client.get(f"/api/operations?{query}").json()["items"]]

    assert ids("modelId=small&nodeId=pc-1&open=true") == [fleet.operation.pk]
    assert ids("modelId=other") == []


@pytest.mark.parametrize("query", ["tail=0", "tail=99999", "after=-1", "after=x"])
def test_a_question_for_a_log_that_cannot_be_is_400(viewer, fleet, query):
    assert viewer.client.get(f"/api/models/small/logs?{query}").status_code == 400


def test_the_log_of_a_model_on_a_node_without_a_key_is_not_a_fault(viewer, fleet):
    answer = viewer.client.get("/api/models/small/logs")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert "pc-1" in answer.json()["detail"]


def test_a_key_is_shown_once_and_revoked(operator, fleet):
    made = send(operator.client, "POST", "/api/keys", {"name": "app", "allowedModels": ["small"]})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("ssk_")
    assert secret not in operator.client.get("/api/keys").content.decode()
    assert operator.client.delete(f"/api/keys/{made.json()['id']}").status_code == 204
    assert secret[12:] not in str(list(AuditLine.objects.values()))
    unknown = send(operator.client, "POST", "/api/keys", {"name": "app", "allowedModels": ["nope"]})
    assert unknown.json()["problems"][0]["code"] == "model_unknown"


def test_audit_lines_are_found_by_node_model_and_time_newest_first(viewer):
    log.record("node.drain", actor.CONFIG, node_id="pc-1")
    log.record("model.start", actor.CONFIG, model_id="small", node_id="pc-1", result="accepted")
    log.record("model.start", actor.CONFIG, model_id="other")

    def actions(query):
        return [item["action"] for item in viewer.client.get(f"/api/audit?{query}").json()["items"]]

    assert actions("nodeId=pc-1") == ["model.start", "node.drain"]
    assert actions("modelId=small") == ["model.start"]
    assert actions("since=2999-01-01T00:00:00Z") == []
    assert len(actions("since=2000-01-01T00:00:00%2B02:00")) == 3


def test_audit_shows_50_lines_by_default_and_leads_to_the_older_ones(viewer):
    for number in range(120):
        log.record("job", actor.CONFIG, detail=str(number))
    seen, address, pages = [], "/api/audit", 0
    while address:
        page = viewer.client.get(address).json()
        seen += [int(item["detail"]) for item in page["items"]]
        address, pages = page["next"], pages + 1
    assert seen == list(range(119, -1, -1))
    assert pages == 3
    assert len(viewer.client.get("/api/audit?max=1000").json()["items"]) == 120


def test_fencing_tells_the_claim_and_whom_the_nodes_obey(viewer, fleet, identity):
    answer = viewer.client.get("/api/fencing").json()
    assert (answer["state"], answer["epoch"], answer["fenced"]) == ("commanding", 1, False)
    assert {node["nodeId"] for node in answer["nodes"]} == {"pc-1", "pc-2"}
    assert "BEGIN" not in str(answer)


def test_fencing_before_there_is_an_identity_is_unknown_not_a_fault(viewer):
    assert viewer.client.get("/api/fencing").json()["epoch"] is None


def test_status_tells_processes_nodes_and_models(viewer, fleet, monkeypatch):
    monkeypatch.setattr(heartbeat, "alive", lambda: {"web": 1.5, "worker": 2.0})
    status = viewer.client.get("/api/status").json()
    assert {"name": "web", "alive": True, "ageSeconds": 1.5} in status["processes"]
    assert {"name": "beat", "alive": False, "ageSeconds": None} in status["processes"]
    assert status["models"][0]["operationId"] == fleet.operation.pk
    assert status["openOperations"] == 1


def test_status_without_a_broker_says_so(viewer, monkeypatch):
    def away():
        raise Unavailable("The broker is unreachable.")

    monkeypatch.setattr(heartbeat, "alive", away)
    status = viewer.client.get("/api/status").json()
    assert (status["brokerProblem"], status["processes"]) == ("The broker is unreachable.", [])


def test_health_answers_strangers_and_readiness_names_what_is_missing(anybody, monkeypatch):
    assert anybody.get("/healthz").status_code == 200
    monkeypatch.setattr(heartbeat, "alive", lambda: dict.fromkeys(heartbeat.PROCESSES, 1.0))
    assert anybody.get("/readyz").json() == {"ready": True, "reasons": [], "warnings": []}
    monkeypatch.setattr(heartbeat, "alive", lambda: {"web": 1.0})
    answer = anybody.get("/readyz")
    assert answer.status_code == 503
    assert any("watcher" in reason for reason in answer.json()["reasons"])


def test_readiness_without_a_broker_is_503(anybody, monkeypatch):
    def away():
        raise Unavailable("The broker is unreachable.")

    monkeypatch.setattr(heartbeat, "alive", away)
    assert anybody.get("/readyz").json()["reasons"] == ["The broker is unreachable."]


def test_metrics_are_prometheus_text_for_who_may_look(with_token):
    answer = with_token("viewer").get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "# HELP mirbad_" in answer.content.decode()
