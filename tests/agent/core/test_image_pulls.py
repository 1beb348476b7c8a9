"""The routes of images, on a real agent over its real port, with a Docker Engine that replays responses."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.wire.images import ImageList, PullState, PullView
from tests.agent.core.conftest import Agent, Master
from tests.bench.fake_docker import Answer, FakeDocker
from tests.waiting import pause_async, until_answer, until_async

pytestmark = pytest.mark.unit

DIGEST = "sha256:" + "a" * 64
REFERENCE = f"registry.local/engine@{DIGEST}"
BODY = {"image": "registry.local/engine", "digest": DIGEST}
INSPECT, CREATE = f"GET /images/{REFERENCE}/json", "POST /images/create"
ABSENT, HERE = Answer(404, {"message": "No such image: engine"}), Answer(body={"Id": "sha256:i"})


class Gate:
    """Events of a pull come one by one, as a test lets them."""

    def __init__(self) -> None:
        self.open = threading.Semaphore(0)

    def answer(self, *lines: Any) -> Answer:
        return Answer(lines=lines, pause=lambda: self.open.acquire(timeout=10))

    def let(self, count: int = 1) -> None:
        self.open.release(count)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path / "docker.sock") as fake:
        yield fake


@pytest.fixture
def config(config: AgentConfig, engine: FakeDocker) -> AgentConfig:
    return config.model_copy(update={"docker_host": engine.host, "approved_images": (REFERENCE,)})


async def until(master: Master, pull_id: str, *states: PullState, done: int | None = None) -> PullView:
    async def look() -> PullView | None:
        view = PullView.model_validate((await master.get(f"/images/pull/{pull_id}")).body)
        return view if view.state in states and (done is None or view.done_bytes == done) else None

    return await until_answer(look, f"pull {pull_id} in one of {states}")


async def test_an_image_is_asked_for_followed_and_listed(master: Master, engine: FakeDocker) -> None:
    layer = {"status": "Downloading", "id": "1", "progressDetail": {"current": 4, "total": 10}}
    gate = Gate()
    engine.answers = {
        INSPECT: [ABSENT, HERE],
        CREATE: [gate.answer({"status": "Pulling fs layer", "id": "1"}, layer, {"status": "Digest: x"})],
        "GET /images/json": [
            Answer(body=[{"RepoDigests": [REFERENCE], "RepoTags": None, "Size": 77}, {"RepoTags": ["<none>:<none>"]}])
        ],
    }
    begun = await master.change("PUT", "/images/pull/p1", BODY, operation_id="p1:pulling")
    assert (begun.status, begun.body["state"], begun.body["image"]) == (202, "pulling", REFERENCE)
    again = await master.change("PUT", "/images/pull/p1", BODY, operation_id="p1:pulling")
    assert again.body == begun.body
    gate.let(1)
    await pause_async(0.35)  # the progress of a pull is written a few times a second
    gate.let(1)
    view = await until(master, "p1", PullState.PULLING, done=4)
    assert view.total_bytes == 10
    gate.let(1)
    view = await until(master, "p1", PullState.READY)
    assert view.finished_at
    assert view.reason is None
    listed = ImageList.model_validate((await master.get("/images")).body)
    assert [(one.references, one.size_bytes) for one in listed.images] == [((REFERENCE,), 77)]
    assert [pull.pull_id for pull in listed.pulls] == ["p1"]
    assert (await master.get("/images/pull/other")).status == 404


async def test_an_image_that_is_not_approved_or_has_no_digest_is_refused(master: Master, engine: FakeDocker) -> None:
    for body, says in (
        ({"image": "registry.local/engine"}, "the spec must name an approved image digest"),
        ({"image": "other", "digest": DIGEST}, "is not approved on this node"),
        ({"image": "a b"}, "is not the name of an image"),
    ):
        refused = await master.change("PUT", "/images/pull/p1", body)
        assert (refused.status, refused.body["code"]) == (422, "spec_rejected")
        assert refused.body["detail"].startswith("Launch spec rejected: ")
        assert says in refused.body["detail"]
    assert (await master.change("PUT", "/images/pull/p%201", BODY)).status == 400
    assert engine.paths() == []


async def test_everyone_who_asks_for_the_same_image_shares_one_pull(master: Master, engine: FakeDocker) -> None:
    gate = Gate()
    engine.answers = {INSPECT: [ABSENT, HERE], CREATE: [gate.answer({"status": "Waiting"}, {"status": "Waiting"})]}
    for name in ("p1", "p2"):
        await master.change("PUT", f"/images/pull/{name}", BODY)
    assert (await master.change("POST", "/images/pull/p1/cancel")).body["state"] == "cancelled"
    gate.let(2)
    await until(master, "p2", PullState.READY)
    assert engine.paths().count(CREATE) == 1
    assert (await until(master, "p1", PullState.CANCELLED)).reason == "Cancelled."


async def test_a_pull_that_nobody_wants_any_more_ends(master: Master, engine: FakeDocker, agent: Agent) -> None:
    gate = Gate()
    engine.answers = {INSPECT: [ABSENT], CREATE: [gate.answer(*[{"status": "Waiting"}] * 50)]}
    await master.change("PUT", "/images/pull/p1", BODY)
    gate.let(1)
    await master.change("POST", "/images/pull/p1/cancel")
    gate.let(49)
    await until_async(lambda: not agent.server._pulls._running, "the pull to end")
    engine.answers = {INSPECT: [HERE]}
    await master.change("PUT", "/images/pull/p1", BODY)
    await until(master, "p1", PullState.READY)


async def test_a_failed_pull_says_why_and_may_be_asked_for_again(master: Master, engine: FakeDocker) -> None:
    full = {"errorDetail": {"message": "write /x: no space left on device"}}
    engine.answers = {INSPECT: [ABSENT, HERE], CREATE: [Answer(lines=[full])]}
    await master.change("PUT", "/images/pull/p1", BODY)
    view = await until(master, "p1", PullState.FAILED)
    assert view.reason_code == "pull_failed"
    assert "the disk of this node is full" in (view.reason or "")
    await master.change("PUT", "/images/pull/p1", BODY)
    await until(master, "p1", PullState.READY)


async def test_without_docker_a_pull_and_the_list_say_so(master: Master, engine: FakeDocker) -> None:
    engine.__exit__()
    engine.path.unlink()
    await master.change("PUT", "/images/pull/p1", BODY)
    view = await until(master, "p1", PullState.FAILED)
    assert view.reason_code == "runtime_unavailable"
    assert "Docker is not running" in (view.reason or "")
    assert "Docker is not running" in (await master.get("/images")).body["problem"]
