"""Downloads against a real agent and a hub of two origins: asked for, followed, cancelled, launched from."""

from collections.abc import Iterator
from datetime import datetime

import pytest

from agent.downloads.hub import RetryPolicy
from agent.models_root import MARKER
from agent.wire.capability import ModelFolder
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation
from jobs.requests import cancellation, downloads, model_runs
from mirbad.kernel.errors import Conflict
from models_app.artifacts import folders
from models_app.artifacts.download_request import DownloadRequest
from models_app.artifacts.errors import FolderInUse, Gated, PickleRefused
from models_app.models import Placement
from nodes.errors import NodeOffline
from nodes.pki import authority
from tests.agent.downloads.conftest import noise
from tests.bench.hub import Hub, Repository
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
SIZE = 2 * 1024 * 1024


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made


@pytest.fixture
def agent(transactional_db, tmp_path, hub) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path).begin()
    made.server._downloads._retry_policy = RetryPolicy(2.0, 2.0, (0.05, 0.05, 0.05))
    made.connect()
    yield made
    made.clear()


def tiny(hub: Hub, **changes) -> Repository:
    files = {"config.json": b"{}", "model.safetensors": noise(SIZE)}
    return hub.add(Repository(**{"name": "acme/tiny", "files": files, **changes}))


def run(operation: Operation, seconds: float = 40) -> Operation:
    def over() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return operation.finished_at is not None

    until(over, f"{operation.kind} to end: {operation.progress}", seconds)
    return operation


def test_a_set_is_brought_to_the_node_and_shown_with_its_bytes(agent, hub) -> None:
    found = tiny(hub)
    hub.faults.bytes_per_second = 4e5
    operation = downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)
    assert downloads.request("local", DownloadRequest("acme/tiny"), None, PERSON).pk == operation.pk, "the same"

    def measured() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return 0 < operation.progress.get("doneBytes", 0) < SIZE and "bytesPerSecond" in operation.progress

    until(measured, "bytes and speed")
    hub.faults.bytes_per_second = None
    done = run(operation)
    assert (done.outcome, done.result["folder"], done.result["commit"]) == ("succeeded", "acme--tiny", found.sha)
    listed = folders.listed("local")
    assert [(f.name, f.repository, f.missing) for f in listed.listed.folders] == [("acme--tiny", "acme/tiny", ())]
    assert [line.result for line in AuditLine.objects.filter(action="download").order_by("id")] == [
        "accepted",
        "succeeded",
    ]


def test_a_gated_repository_is_refused_and_then_allowed_and_the_token_is_nowhere(agent, hub) -> None:
    tiny(hub, gated=True, allowed={"hf_canary_1234"})
    with pytest.raises(Gated):
        downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)
    assert not Operation.objects.exists()
    assert run(downloads.request("", DownloadRequest("acme/tiny"), "hf_canary_1234", PERSON)).outcome == "succeeded"
    rows = str(Operation.objects.values_list()) + str(AuditLine.objects.values_list())
    assert "canary" not in rows
    on_disk = [p for root in (agent.config.state_dir, agent.config.models_root) for p in root.rglob("*") if p.is_file()]
    assert not any(b"canary" in path.read_bytes() for path in on_disk)
    assert {seen.token for seen in hub.of("store")} == {None}


def test_what_is_a_pickle_is_refused_before_there_is_an_operation(agent, hub) -> None:
    hub.add(Repository("acme/old", {"pytorch_model.bin": noise(100_000)}))
    with pytest.raises(PickleRefused):
        downloads.request("", DownloadRequest("acme/old"), None, PERSON)
    assert not Operation.objects.exists()
    assert hub.of("store") == []


def test_a_cancelled_download_ends_on_the_node_and_is_forgotten_there(agent, hub) -> None:
    tiny(hub)
    hub.faults.bytes_per_second = 5e5
    operation = downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)
    until(lambda: worker.run(operation.pk) or hub.of("store"), "bytes to come")
    with pytest.raises(Conflict):
        downloads.request("", DownloadRequest("acme/tiny", files=("config.json",)), None, PERSON)
    with pytest.raises(Conflict):
        downloads.forget(operation.pk, PERSON)
    cancellation.request(operation.pk, PERSON)
    assert run(operation).outcome == "cancelled"
    assert [shown.view.state for shown in downloads.of_node("")[1]] == ["cancelled"]
    downloads.forget(operation.pk, PERSON)
    assert downloads.of_node("")[1][0].view is None
    assert not list((agent.config.models_root / ".downloads").rglob("*.part"))


def test_an_agent_that_restarts_in_the_middle_goes_on_and_the_operation_follows(agent, hub) -> None:
    tiny(hub)
    hub.faults.bytes_per_second = 5e5
    operation = downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)
    until(lambda: worker.run(operation.pk) or hub.of("store"), "bytes to come")
    agent.end()
    until(lambda: worker.run(operation.pk) or Operation.objects.get().error, "the outage to be seen")
    operation.refresh_from_db()
    assert operation.error["code"] == "node_offline"
    hub.faults.bytes_per_second = None
    agent.begin()
    assert run(operation).outcome == "succeeded"


def test_lists_are_read_anew_on_each_connection_and_not_taken_from_an_earlier_one(agent, hub) -> None:
    row = agent.node
    stale = ModelFolder(name="deleted-meanwhile", total_bytes=330 * 2**30).to_wire()
    type(row).objects.update(capabilities=row.capabilities | {"folders": [stale]})
    assert [folder["name"] for folder in agent.node.capabilities["folders"]] == ["deleted-meanwhile"]
    agent.connect()
    assert agent.node.capabilities["folders"] == []


def test_a_node_that_is_away_is_said_before_anything_is_made(agent, hub) -> None:
    tiny(hub)
    type(agent.node).objects.update(reachability="offline")
    with pytest.raises(NodeOffline):
        downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)
    assert not Operation.objects.exists()


def _model(**source):
    values = {"kind": "huggingface", "folder": "acme--tiny", "repository": "acme/tiny", **source}
    return placed(node_id="local", sources=[values])


def test_a_launch_downloads_what_the_node_lacks_and_then_starts(agent, hub) -> None:
    tiny(hub)
    _model()
    started = run(model_runs.start("tiny", PERSON))
    assert (started.outcome, started.error) == ("succeeded", {})
    stages = list(dict.fromkeys(started.events.values_list("stage", flat=True)))
    assert stages == ["checking", "downloading", "starting", "waiting", "done"]
    assert Placement.objects.get().observed == "ready"
    with pytest.raises(FolderInUse):
        folders.remove("local", "acme--tiny", PERSON)
    asked = len(hub.seen)
    assert run(model_runs.restart("tiny", PERSON)).outcome == "succeeded"
    assert len(hub.seen) == asked, "what is there is not asked for again"
    run(model_runs.stop("tiny", PERSON))
    gone = folders.remove("local", "acme--tiny", PERSON)
    assert gone.freed_bytes >= SIZE
    assert gone.remaining_bytes == 0
    assert AuditLine.objects.filter(action="folder.delete", result="succeeded", target="acme--tiny").exists()


def test_a_launch_of_a_gated_model_says_how_to_bring_its_weights(agent, hub) -> None:
    tiny(hub, gated=True, allowed={"hf_good"})
    _model()
    failed = run(model_runs.start("tiny", PERSON))
    assert (failed.outcome, failed.error["code"]) == ("failed", "gated")
    assert "page of downloads" in failed.error["detail"]
    assert run(downloads.request("", DownloadRequest("acme/tiny"), "hf_good", PERSON)).outcome == "succeeded"
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"


def test_a_launch_that_is_stopped_while_it_downloads_ends_the_download(agent, hub) -> None:
    tiny(hub)
    hub.faults.bytes_per_second = 5e5
    _model()
    operation = model_runs.start("tiny", PERSON)
    until(lambda: worker.run(operation.pk) or hub.of("store"), "bytes to come")
    assert model_runs.stop("tiny", PERSON).pk == operation.pk
    assert run(operation).outcome == "cancelled"
    assert not agent.server._downloads.is_busy("acme--tiny")


def test_a_wait_that_the_hub_asks_for_is_shown_with_its_end(agent, hub) -> None:
    tiny(hub)
    hub.faults.refusals = {"store": [(429, {"RateLimit": '"resolvers";r=0;t=2'})]}
    operation = downloads.request("", DownloadRequest("acme/tiny"), None, PERSON)

    def waits() -> str:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return str(operation.progress.get("waitsUntil", ""))

    until_then = until(waits, "the wait")
    assert "localhost limits requests and asked to wait until" in operation.progress["text"]
    assert f"{datetime.fromisoformat(until_then):%H:%M:%S} UTC" in operation.progress["text"]
    assert downloads.of_node("")[1][0].view.waits_until == until_then
    assert run(operation).outcome == "succeeded"
    assert "waitsUntil" not in operation.progress


def test_a_disk_that_is_not_there_fails_the_download_with_its_code_and_nothing_is_fetched(agent, hub) -> None:
    tiny(hub)
    folder = agent.config.models_root / "mine"
    folder.mkdir()
    assert [found.name for found in folders.listed("local").listed.folders] == ["mine"]
    (agent.config.models_root / MARKER).unlink()
    done = run(downloads.request("", DownloadRequest("acme/tiny"), None, PERSON))
    assert (done.outcome, done.error["code"]) == ("failed", "models_root_changed")
    assert "accept-root" in done.error["detail"]
    assert hub.of("store") == []
    listed = folders.listed("local").listed
    assert (listed.problem_code, listed.free_bytes) == ("models_root_changed", None)
