"""Pulls of container images as operations, against a real agent beside a Docker Engine's door that replays answers."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from audit.models import AuditLine
from jobs import ledger, worker
from jobs.models import Operation
from jobs.requests import cancellation, images, model_runs
from mirbad.kernel import clock
from mirbad.kernel.errors import InvalidRequest
from models_app.artifacts import images as artifacts
from models_app.artifacts.errors import RuntimeUnavailable, SpecRejected
from models_app.models import Placement
from nodes import registry
from nodes.errors import NodeOffline
from nodes.link import client
from nodes.pki import authority
from tests.bench.fake_docker import Answer, FakeDocker
from tests.jobs.real import RealAgent
from tests.jobs.test_downloads import run
from tests.models_app.things import PERSON, placed
from tests.waiting import pause, until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

DIGEST = "sha256:" + "a" * 64
REFERENCE = f"registry.local/engine@{DIGEST}"
INSPECT, CREATE = f"GET /images/{REFERENCE}/json", "POST /images/create"
ABSENT, HERE = Answer(404, {"message": "No such image: engine"}), Answer(body={"Id": "sha256:i"})
LAYERS = (
    {"status": "Pulling fs layer", "id": "1"},
    {"status": "Downloading", "id": "1", "progressDetail": {"current": 400, "total": 1000}},
)


@pytest.fixture
def docker(tmp_path_factory) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path_factory.mktemp("d") / "docker.sock") as fake:
        fake.answers = {
            "GET /info": [Answer(body={"ServerVersion": "29.0", "Runtimes": {}})],
            "GET /images/json": [Answer(body=[{"RepoDigests": [REFERENCE], "RepoTags": [], "Size": 77}])],
            INSPECT: [ABSENT, HERE],
            CREATE: [Answer(lines=LAYERS)],
        }
        yield fake


@pytest.fixture
def agent(transactional_db, tmp_path, docker) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path)
    made.config = made.config.model_copy(update={"docker_host": docker.host, "approved_images": (REFERENCE,)})
    made.begin().connect()
    yield made
    made.clear()


def held(docker: FakeDocker) -> threading.Event:
    """A pull that stands after its first layer until the event is set."""
    go, count = threading.Event(), iter(range(100))
    pause = lambda: next(count) < 2 or go.wait(20)  # noqa: E731 - a line that is used once
    docker.answers[CREATE] = [Answer(lines=(*LAYERS, {"status": "Digest"}), pause=pause)]
    return go


def test_an_image_is_pulled_to_a_node_and_shown_with_its_bytes(agent, docker, monkeypatch) -> None:
    monkeypatch.setattr("agent.deliveries.docker_pull._REPORT_SECONDS", 0.0)
    go = held(docker)
    operation = images.request("local", "registry.local/engine", DIGEST, PERSON)
    assert images.request("local", REFERENCE, "", PERSON).pk == operation.pk, "the same image is the same operation"

    def measured() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return operation.progress.get("doneBytes") == 400

    until(measured, "its bytes")
    assert operation.progress["totalBytes"] == 1000
    go.set()
    assert run(operation).outcome == "succeeded"
    assert operation.result == {"image": REFERENCE}
    lines = AuditLine.objects.filter(action="download", target=REFERENCE).order_by("id")
    assert [line.result for line in lines] == ["accepted", "succeeded"]
    assert artifacts.of_node("local").has(REFERENCE).size_bytes == 77


def test_what_the_node_does_not_run_is_refused_before_there_is_an_operation(agent, docker) -> None:
    for image, digest, says in (
        ("other/engine", DIGEST, "is not approved on this node"),
        ("registry.local/engine", "", "must name an approved image digest"),
    ):
        with pytest.raises(SpecRejected, match="Launch spec rejected: .*" + says):
            images.request("local", image, digest, PERSON)
    with pytest.raises(InvalidRequest, match="no default one"):
        images.request("local", "", "", PERSON)
    assert not Operation.objects.exists()
    refused = AuditLine.objects.filter(action="download", result="refused", error_code="spec_rejected")
    assert refused.count() == 2


def test_without_a_name_it_is_the_nodes_default_image(agent, docker) -> None:
    registry.update("local", {"defaultVllmImage": "registry.local/engine", "defaultVllmImageDigest": DIGEST}, PERSON)
    assert run(images.request("local", "", "", PERSON)).result == {"image": REFERENCE}


def test_a_failed_pull_keeps_dockers_words(agent, docker) -> None:
    docker.answers[INSPECT] = [ABSENT]
    docker.answers[CREATE] = [Answer(lines=[{"errorDetail": {"message": "no space left on device"}}])]
    failed = run(images.request("local", REFERENCE, "", PERSON))
    assert (failed.outcome, failed.error["code"]) == ("failed", "pull_failed")
    assert "the disk of this node is full" in failed.error["detail"]


def test_a_cancelled_pull_ends_on_the_node(agent, docker) -> None:
    go = held(docker)
    operation = images.request("local", REFERENCE, "", PERSON)
    until(lambda: worker.run(operation.pk) or CREATE in docker.paths(), "the pull to begin")
    cancellation.request(operation.pk, PERSON)
    assert run(operation).outcome == "cancelled"
    go.set()
    until(lambda: not agent.server._pulls._running, "the pull to end on the node")


def test_an_agent_that_restarts_in_the_middle_is_asked_again(agent, docker) -> None:
    go = held(docker)
    operation = images.request("local", REFERENCE, "", PERSON)
    until(lambda: worker.run(operation.pk) or CREATE in docker.paths(), "the pull to begin")
    docker.answers[CREATE] = [Answer(lines=LAYERS)]
    go.set()
    agent.end()
    until(lambda: worker.run(operation.pk) or Operation.objects.get().error, "the outage to be seen")
    docker.answers[INSPECT] = [ABSENT, HERE]
    agent.begin()
    assert run(operation).outcome == "succeeded"
    assert docker.paths().count(CREATE) == 2


@pytest.mark.parametrize(
    ("digest", "says"), [("", "must name an approved image digest"), (DIGEST, "is not approved on this node")]
)
def test_a_start_with_an_image_that_the_node_does_not_run_is_refused_at_once(agent, docker, digest, says) -> None:
    placed(node_id="local", delivery="container", image="other/engine", image_digest=digest)
    with pytest.raises(SpecRejected, match=f"Launch spec rejected: .*{says}"):
        model_runs.start("tiny", PERSON)
    assert not Operation.objects.exists()
    assert Placement.objects.get().desired == "stopped"


def test_a_node_without_docker_says_so(agent, docker) -> None:
    docker.__exit__()
    docker.path.unlink()
    agent.connect()
    with pytest.raises(RuntimeUnavailable, match="Docker is not running"):
        images.request("local", REFERENCE, "", PERSON)


class Killed(BaseException):
    """The worker is gone: no handler of ours may see it."""


def test_a_worker_that_is_killed_anywhere_pulls_once_and_loses_nothing(agent, docker, monkeypatch) -> None:
    """One kill at every boundary in turn: after a claim, around each call to the agent, in and after each write."""
    monkeypatch.setattr("jobs.steps.artifacts.LOOK_SECONDS", 0.05)
    crossed, armed = [0], [0]

    def around(real, *, before: bool = False):
        def call(*args, **kwargs):
            if before:
                cross()
            answer = real(*args, **kwargs)
            cross()
            return answer

        return call

    def cross() -> None:
        crossed[0] += 1
        if crossed[0] == armed[0]:
            raise Killed

    monkeypatch.setattr(ledger, "claim", around(ledger.claim))
    monkeypatch.setattr(ledger, "_update", around(ledger._update))
    monkeypatch.setattr(ledger, "write", around(ledger.write))
    monkeypatch.setattr(client, "call", around(client.call, before=True))
    boundary, fell = 0, True
    while fell:
        boundary, fell = boundary + 1, False
        docker.answers[INSPECT], docker.answers[CREATE] = [ABSENT, HERE], [Answer(lines=LAYERS)]
        before = docker.paths().count(CREATE)
        armed[0] = 0
        operation = images.request("local", REFERENCE, "", PERSON)
        crossed[0], armed[0] = 0, boundary
        for _ in range(400):
            try:
                worker.run(operation.pk)
            except Killed:
                fell = True
                past = clock.now() - timedelta(seconds=1)
                Operation.objects.filter(pk=operation.pk, finished_at=None).update(
                    lease_expires_at=past, next_run_at=past
                )
            operation.refresh_from_db()
            if operation.finished_at is not None:
                break
            pause(0.02)
        assert operation.outcome == "succeeded", f"killed at boundary {boundary}"
        assert docker.paths().count(CREATE) == before + 1, f"killed at boundary {boundary}"
    assert boundary > 12, "it was killed in every stage"
    told = AuditLine.objects.filter(action="download", target=REFERENCE, result="succeeded").count()
    assert told == boundary, "each told once"


def test_the_api_lists_images_pulls_one_and_refuses_in_the_agents_words(agent, docker, operator, viewer) -> None:
    body = viewer.client.get("/api/nodes/local/images").json()
    assert (body["allowTagPulls"], body["defaults"], body["problem"]) == (False, [], "")
    assert body["approved"] == [{"reference": REFERENCE, "present": True, "sizeBytes": 77}]
    assert body["items"] == [{"references": [REFERENCE], "sizeBytes": 77}]

    def pull(client, **sent):
        return client.post("/api/nodes/local/images/pull", json.dumps(sent), content_type="application/json")

    assert pull(viewer.client, image=REFERENCE).status_code == 403
    refused = pull(operator.client, image="other", imageDigest=DIGEST)
    assert (refused.status_code, refused.json()["code"]) == (422, "spec_rejected")
    assert pull(operator.client, image=REFERENCE, imageDigest="latest").status_code == 400
    accepted = pull(operator.client, image=REFERENCE)
    assert accepted.status_code == 202
    assert run(Operation.objects.get(pk=accepted.json()["id"])).outcome == "succeeded"


@pytest.mark.parametrize(
    ("node_id", "changes", "status", "code"),
    [
        ("nobody", {}, 404, "not_found"),
        ("local", {"lifecycle": "revoked"}, 409, "node_revoked"),
        ("local", {"lifecycle": "pending"}, 409, "invalid_state"),
        ("local", {"reachability": "offline"}, 503, "node_offline"),
    ],
)
def test_a_node_that_cannot_be_asked_is_told_by_its_code(agent, viewer, node_id, changes, status, code) -> None:
    if changes:
        type(agent.node).objects.update(**changes)
    answer = viewer.client.get(f"/api/nodes/{node_id}/images")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert NodeOffline.code == "node_offline"
