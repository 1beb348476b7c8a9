"""Every route, what guards it, and what it answers."""

from typing import Any

import pytest

from agent.server.app import ROUTES
from agent.server.guard import is_fenced
from agent.wire.capability import AgentInfo, Capabilities
from agent.wire.fence import FenceView
from agent.wire.instances import InstanceForgotten, InstanceState, InstanceView, LogSlice
from agent.wire.operations import OperationView
from agent.wire.status import NodeStatus
from tests.agent.core.conftest import FIRST_CLAIM, Agent, Master, launch_spec

pytestmark = pytest.mark.unit

READS = {"GET", "HEAD"}


def test_every_route_that_changes_something_is_fenced_and_journaled() -> None:
    unfenced = [(method, path) for method, path, handler in ROUTES if method not in READS and not is_fenced(handler)]
    assert unfenced == []


def test_no_read_is_fenced() -> None:
    assert [path for method, path, handler in ROUTES if method in READS and is_fenced(handler)] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/fence", FIRST_CLAIM.to_wire()),
        ("PUT", "/instances/a", launch_spec()),
        ("POST", "/instances/a/stop", {}),
        ("DELETE", "/instances/a", None),
    ],
)
async def test_a_change_without_claim_or_operation_id_is_refused(
    master: Master, agent: Agent, method: str, path: str, body: Any
) -> None:
    import json

    data = json.dumps(body or {}).encode()
    assert (await master.send(method, path, data)).body["code"] == "invalid_request"
    only_claim = {"Mirbad-Epoch": "1", "Mirbad-Instance": FIRST_CLAIM.instance_id}
    assert (await master.send(method, path, data, **only_claim)).status == 400
    assert agent.engines.launches == agent.engines.stops == []


async def test_info_tells_who_the_node_is(stranger: Master, agent: Agent) -> None:
    reply = await stranger.get("/info")
    info = AgentInfo.model_validate(reply.body)
    assert reply.status == 200
    assert (info.node_id, info.spki_sha256) == ("pc-1", agent.store.load().spki)
    assert info.held_claim is None
    assert info.protocol_versions == (1,)


async def test_capabilities_and_status_are_read_from_the_machine(master: Master) -> None:
    assert Capabilities.model_validate((await master.get("/capabilities")).body).cpu_count == 2
    status = NodeStatus.model_validate((await master.get("/status")).body)
    assert status.host.memory_total_bytes == 8 << 30
    assert status.host.cpu_percent is None
    assert status.held_claim == FIRST_CLAIM


async def test_an_engine_is_launched_seen_stopped_and_forgotten(master: Master, agent: Agent) -> None:
    launched = await master.change("PUT", "/instances/smollm2.1", launch_spec(), operation_id="op-launch")
    assert launched.status == 202
    assert InstanceView.model_validate(launched.body).state is InstanceState.STARTING
    assert (await master.get("/instances/smollm2.1")).body == {**launched.body, "openRequests": 0}
    operation = OperationView.model_validate((await master.get("/operations/op-launch")).body)
    assert (operation.state, operation.route) == ("succeeded", "PUT /instances/smollm2.1")
    log = LogSlice.model_validate((await master.get("/instances/smollm2.1/log?tail=5&after=3&run=1")).body)
    assert log.lines == ("tail=5 after=3 run=1",)
    stopped = await master.change("POST", "/instances/smollm2.1/stop", {"graceSeconds": 3})
    assert stopped.body["state"] == "stopping"
    gone = await master.change("DELETE", "/instances/smollm2.1")
    assert InstanceForgotten.model_validate(gone.body).instance_id == "smollm2.1"
    assert (await master.get("/instances/smollm2.1")).status == 404


async def test_forgetting_what_is_not_there_is_done_already(master: Master) -> None:
    assert (await master.change("DELETE", "/instances/never")).status == 200


async def test_the_body_of_a_claim_must_repeat_its_headers(master: Master) -> None:
    reply = await master.change("PUT", "/fence", {"epoch": 9, "instanceId": "another-master"})
    assert reply.status == 400
    assert FenceView(held=FIRST_CLAIM).to_wire()["held"] == (await master.get("/info")).body["heldClaim"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/instances/none", 404, "not_found"),
        ("GET", "/instances/..%2Fetc", 400, "invalid_request"),
        ("GET", f"/instances/{'a' * 129}", 400, "invalid_request"),
        ("GET", "/instances/none/log?tail=-1", 400, "invalid_request"),
        ("GET", "/instances/none/log?tail=999999", 400, "invalid_request"),
        ("GET", "/instances/none/log?run=3", 400, "invalid_request"),
        ("GET", "/instances/none/log?after=%D9%A3", 400, "invalid_request"),
        ("GET", "/events?after=x", 400, "invalid_request"),
        ("GET", "/operations/op-never", 404, "not_found"),
        ("POST", "/info", 405, "invalid_request"),
        ("PATCH", "/instances/a", 405, "invalid_request"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_a_code(
    master: Master, method: str, path: str, status: int, code: str
) -> None:
    reply = await master.send(method, path)
    assert (reply.status, reply.body["code"]) == (status, code)
    assert reply.body["detail"]
    assert ("Allow" in reply.headers) is (status == 405)


async def test_a_body_that_is_too_large_is_refused_and_the_connection_ends(master: Master) -> None:
    reply = await master.change("PUT", "/instances/a", {"pad": "x" * (1024 * 1024 + 1)})
    assert (reply.status, reply.body["code"]) == (413, "payload_too_large")
    assert reply.headers["Connection"] == "close"


async def test_a_wrong_field_is_named_and_its_value_is_not_repeated(master: Master) -> None:
    reply = await master.change("PUT", "/instances/a", launch_spec(secretEnv={"HF_TOKEN": ["s3cret-value"]}))
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    assert "secretEnv" in reply.body["fields"]["problems"][0]["field"]
    assert "s3cret-value" not in str(reply.body)


async def test_a_failure_of_the_agent_is_told_without_its_insides(
    master: Master, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent.engines, "view", lambda _: 1 / 0)
    reply = await master.get("/instances/a")
    assert (reply.status, reply.body["code"]) == (500, "internal")
    assert "division" not in str(reply.body)
    assert "ZeroDivisionError" in caplog.text
