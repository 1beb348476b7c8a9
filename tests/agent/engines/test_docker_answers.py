"""Recorded answers of Docker Engines, replayed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.deliveries import docker_engine, docker_pull
from agent.deliveries.base import DeliveryFailed, Handle, ImageSpec, RunSpec
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.docker_container import LAUNCH_LABEL, used_memory
from agent.deliveries.images import parse
from agent.wire.instances import PullProgress
from tests.bench.fake_docker import Answer, FakeDocker

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + "a" * 64
IMAGE = parse(f"registry.local/engine@{DIGEST}")
ABSENT, HERE = Answer(404, {"message": "No such image: engine"}), Answer(body={"Id": "i", "RepoDigests": []})
CREATE, INSPECT = "POST /containers/create", f"GET /images/{IMAGE.reference}/json"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path / "docker.sock") as fake:
        yield fake


def container(status: str = "running", launch: str = "l1") -> dict[str, object]:
    labels = {"mirbad.fleet": "f", LAUNCH_LABEL: launch}
    return {
        "Id": "c1", "Name": "/mirbad", "Image": "sha256:i", "State": {"Status": status},
        "Config": {"Labels": labels, "Image": IMAGE.reference},
    }  # fmt: skip


ORDER = RunSpec(
    instance_id="i1", launch_id="l1", argv=(), env={}, log=Path("/dev/null"),
    image=ImageSpec(IMAGE.reference, None, None, (), 8000, 20_000, None, {}, internet=True),
)  # fmt: skip
NAME = "mirbad-i1-l1"
TAKEN = Answer(409, {"message": f'Conflict. The container name "/{NAME}" is already in use by container "9b2".'})


def bring(engine: FakeDocker, stop: docker_pull.PullStop | None = None) -> list[PullProgress]:
    reported: list[PullProgress] = []
    docker_pull.ensure_image(engine.host, IMAGE, reported.append, stop or docker_pull.PullStop())
    return reported


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            {"errorDetail": {"message": "no space left on device"}, "error": "no space left on device"},
            "pull_failed",
            "disk",
        ),
        ({"errorDetail": {"message": "manifest unknown"}}, "image_not_found", "no such image"),
        ({"error": "denied: requested access to the resource is denied"}, "registry_unauthorized", "login"),
        ({"errorDetail": None, "error": "unexpected EOF"}, "registry_unreachable", "unexpected EOF"),
        ({"errorDetail": {}, "error": "toomanyrequests"}, "registry_rate_limited", "toomanyrequests"),
        ({"error": "odd"}, "pull_failed", "odd"),
    ],
)
def test_an_error_inside_an_answer_of_200_is_an_error(
    engine: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: object, code: str, says: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    lines = [{"status": "Pulling from engine"}, {"status": "Pulling fs layer", "id": "1"}, error]
    engine.answers = {INSPECT: [ABSENT], "POST /images/create": [Answer(lines=lines)]}
    with pytest.raises(DeliveryFailed) as failed:
        bring(engine)
    assert failed.value.code == code
    assert says in str(failed.value)


def test_a_pull_that_says_nothing_of_an_error_and_brings_nothing_is_an_error(engine: FakeDocker) -> None:
    engine.answers = {INSPECT: [ABSENT], "POST /images/create": [Answer(lines=[{"status": "Downloading"}])]}
    with pytest.raises(DeliveryFailed, match="does not list it"):
        bring(engine)


def test_an_image_that_is_here_is_not_pulled(engine: FakeDocker) -> None:
    engine.answers = {INSPECT: [HERE]}
    assert bring(engine) == []
    assert engine.paths() == [INSPECT]


def test_the_bytes_of_a_pull_are_those_of_its_layers_and_no_total_is_made_up(
    engine: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_pull, "_REPORT_SECONDS", 0.0)
    lines = [
        {"status": "Pulling fs layer", "id": "1"},
        {"status": "Pulling fs layer", "id": "2"},
        {"status": "Downloading", "id": "1", "progressDetail": {"current": 4, "total": 10}},
        {"status": "Downloading", "id": "2", "progressDetail": {}},
        {"status": "Downloading", "id": "2", "progressDetail": {"current": 1, "total": 5}},
        {"status": "Pull complete", "id": "1"},
    ]
    engine.answers = {INSPECT: [ABSENT, HERE], "POST /images/create": [Answer(lines=lines)]}
    reported = [(one.done_bytes, one.total_bytes) for one in bring(engine)]
    assert reported == [(None, None), (None, None), (None, None), (4, None), (4, None), (5, 15), (11, 15)]


def test_a_pull_that_is_given_up_ends_at_the_next_event(engine: FakeDocker) -> None:
    stop = docker_pull.PullStop()
    endless = [{"status": "Downloading", "id": "1"}] * 10_000
    engine.answers = {INSPECT: [ABSENT], "POST /images/create": [Answer(lines=endless, pause=stop.set)]}
    with pytest.raises(docker_pull.PullStopped):
        bring(engine, stop)


def test_a_pull_of_which_the_engine_says_nothing_more_is_given_up_at_once(engine: FakeDocker) -> None:
    stop, hang = docker_pull.PullStop(), threading.Event()
    turns = iter(range(10))
    silent = Answer(lines=[{"status": "Waiting"}] * 3, pause=lambda: next(turns) < 1 or hang.wait(20))
    engine.answers = {INSPECT: [ABSENT], "POST /images/create": [silent]}
    threading.Timer(0.3, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(docker_pull.PullStopped):
        bring(engine, stop)
    assert time.monotonic() - begun < 10
    hang.set()


def test_an_engine_that_goes_away_in_the_middle_of_a_pull_is_told_as_that(engine: FakeDocker) -> None:
    def leave() -> None:
        raise ConnectionResetError

    broken = Answer(lines=[{"status": "Waiting"}], pause=leave)
    engine.answers = {INSPECT: [ABSENT], "POST /images/create": [broken]}
    with pytest.raises(DeliveryFailed) as failed:
        bring(engine)
    assert failed.value.code == "runtime_unavailable"


async def test_an_engine_that_was_upgraded_under_the_agent_is_asked_in_its_new_version(engine: FakeDocker) -> None:
    engine.answers = {"GET /containers/c1/json": [Answer(body=container())]}
    engine.api = "1.41"
    delivery = DockerDelivery(engine.host, "f", "n")
    handle = Handle(launch_id="l1", container_id="c1")
    assert (await delivery.observe(handle)).running
    engine.api, engine.minimum = "1.52", "1.44"
    assert (await delivery.observe(handle)).running
    versions = [one.version for one in engine.seen if one.path == "/containers/c1/json"]
    assert versions == ["1.41", "1.41", "1.52"]
    await delivery.close()


async def test_an_engine_without_a_version_in_common_is_said_in_words(engine: FakeDocker) -> None:
    engine.answers = {"GET /info": [Answer(400, {"message": "client version 1.47 is too old"})]}
    assert "no common API version" in ((await docker_engine.read_state(engine.host)).problem or "")
    engine.api = "1.12"
    assert "no common API version" in ((await docker_engine.read_state(engine.host)).problem or "")


@pytest.mark.parametrize(
    ("left", "removed"),
    [
        (Answer(404, {"message": "No such container"}), False),
        (Answer(body=container("created")), True),
        (Answer(body=container("running", "of-another-launch")), False),
    ],
)
async def test_a_name_that_is_taken_by_what_is_gone_or_left_over_does_not_stop_a_start(
    engine: FakeDocker, left: Answer, removed: bool
) -> None:
    engine.answers = {
        CREATE: [TAKEN, Answer(201, {"Id": "c1", "Warnings": []})],
        f"GET /containers/{NAME}/json": [left],
        "DELETE /containers/c1": [Answer(409, {"message": "No such container: 9b2"})],
        "GET /containers/c1/json": [Answer(body=container())],
        "POST /containers/c1/start": [Answer(204)],
        "GET /images/i/json": [HERE],
    }
    delivery = DockerDelivery(engine.host, "f", "n")
    assert (await delivery.start(ORDER)).container_id == "c1"
    assert ("DELETE /containers/c1" in engine.paths()) is removed
    assert engine.paths().count(CREATE) == 2
    await delivery.close()


async def test_a_stop_that_names_a_container_that_is_gone_has_stopped(engine: FakeDocker) -> None:
    engine.answers = {
        "GET /containers/c1/json": [Answer(body=container()), Answer(404, {"message": "No such container"})],
        "POST /containers/c1/stop": [Answer(409, {"message": "container c1 is marked for removal"})],
    }
    delivery = DockerDelivery(engine.host, "f", "n")
    assert not (await delivery.stop(Handle(launch_id="l1", container_id="c1"), 1.0)).running
    await delivery.close()


@pytest.mark.parametrize(
    ("stats", "bytes_"),
    [
        ({"memory_stats": {"usage": 100, "stats": {"inactive_file": 30}}}, 70),
        ({"memory_stats": {"usage": 100, "stats": {"total_inactive_file": 40}}}, 60),
        ({"memory_stats": {"usage": 10, "stats": {"inactive_file": 30}}}, 0),
        ({"memory_stats": {"usage": 100, "stats": {}}}, 100),
        ({"memory_stats": {"usage": 100, "stats": None}}, 100),
        ({"memory_stats": {"usage": 100}}, 100),
        ({"memory_stats": {"usage": 100, "stats": {"inactive_file": None}}}, 100),
        ({"memory_stats": {"stats": {"inactive_file": 30}}}, None),
        ({"memory_stats": {"usage": None}}, None),
        ({"memory_stats": {}}, None),
        ({"memory_stats": None}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
async def test_stats_with_missing_keys_are_unknown_and_never_zero(
    engine: FakeDocker, stats: object, bytes_: int | None
) -> None:
    assert used_memory(stats) == bytes_
    engine.answers = {"GET /containers/c1/stats": [Answer(body=stats)]}
    delivery = DockerDelivery(engine.host, "f", "n")
    assert await delivery.memory_bytes(Handle(launch_id="l1", container_id="c1")) == bytes_
    await delivery.close()
