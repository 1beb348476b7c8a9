"""Replicas on several real agents: alone each, and as the shards of one, with real processes that meet over TCP."""

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from jobs import worker
from jobs.loops.replicas import rebuild_once
from jobs.loops.watch import Watcher
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation, model_runs
from models_app import keys, queries
from models_app.gateway import loader
from models_app.gateway.service import Gateway, GatewayOptions
from models_app.gateway.table import RouteState
from models_app.models import Placement
from models_app.placement import apply
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON, definition, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

Fleet = list[RealAgent]


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for name in ("mlx5_0", "mlx5_1"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    return tmp_path / "sys"


@pytest.fixture
def fleet(transactional_db, tmp_path: Path, sysfs: Path) -> Iterator[Fleet]:
    """Three nodes on one fabric, watched."""
    authority.ensure()
    agents = [
        RealAgent(tmp_path / name, name, fabrics=("ib-b",), sysfs_root=sysfs).begin() for name in ("n0", "n1", "n2")
    ]
    end = watch()
    until(lambda: all(agent.node.reachability == "online" for agent in agents), "the nodes to be online")
    yield agents
    end()
    for agent in agents:
        agent.clear()


def watch() -> Callable[[], None]:
    watcher, loop, ended = None, asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        nonlocal watcher
        watcher = Watcher()
        await watcher.run()

    def begin() -> None:
        loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        ended.set()

    threading.Thread(target=begin, daemon=True).start()

    def end() -> None:
        loop.call_soon_threadsafe(watcher.stop)
        assert ended.wait(20)

    return end


def work(seconds: float = 40) -> None:
    """Do the workers' work until nothing is left to do."""

    def over() -> bool:
        for operation in unfinished():
            worker.run(operation.pk)
        return not unfinished().exists()

    until(over, f"operations to end: {list(unfinished().values_list('stage', 'progress', 'error'))}", seconds)


def outcomes() -> list[str]:
    return list(Operation.objects.order_by("id").values_list("outcome", flat=True))


def sharded(*nodes: str, **fields) -> UUID:
    """A model that stands as one replica on `nodes` alone."""
    placed(node_id=nodes[0], **fields)
    Placement.objects.all().delete()
    return apply.add_replica("tiny", [(node, ()) for node in nodes], PERSON).id


def state() -> tuple[str, bool]:
    shown = queries.shown_model_state(definition())
    return shown.name, shown.serves


def route() -> RouteState:
    (found,) = loader.build().models["tiny"].routes
    return found.state


def pids() -> dict[int, int]:
    return {one.shard: one.observed_view.get("pid") for one in Placement.objects.all()}


def test_replicas_alone_on_their_nodes_start_and_stop_together(fleet: Fleet) -> None:
    placed(node_id="n0")
    apply.add_replica("tiny", [("n1", ())], PERSON)
    accepted = model_runs.start_all("tiny", PERSON)
    assert [one.node_id_text for one in accepted.operations] == ["n0", "n1"]
    work()
    assert outcomes() == ["succeeded", "succeeded"]
    assert state() == ("ready", True)
    assert [one.state for one in loader.build().models["tiny"].routes] == [RouteState.READY] * 2
    model_runs.stop("tiny", PERSON)
    work()
    assert set(Placement.objects.values_list("observed", flat=True)) == {"stopped"}


def test_three_shards_meet_serve_as_one_and_are_rebuilt_when_one_is_lost(fleet: Fleet) -> None:
    sharded("n0", "n1", "n2")
    first = model_runs.start("tiny", PERSON)
    assert first.node_id_text == "n0"
    work()
    assert outcomes() == ["succeeded"] * 3
    assert (state(), route()) == (("ready", True), RouteState.READY)
    assert rebuild_once() == 0, "nothing is wrong"

    before = pids()
    os.kill(before[2], signal.SIGKILL)
    until(lambda: Placement.objects.get(shard=2).observed == "failed", "the loss to be seen")
    assert (state()[1], route()) == (False, RouteState.RESTARTING)
    assert queries.shown_model_state(definition()).reasons[0].endswith("of 3 shards ready.")
    assert rebuild_once() == 1
    assert rebuild_once() == 0, "it is on its way"
    work()
    assert (state(), route()) == (("ready", True), RouteState.READY)
    after = pids()
    assert not set(after.values()) & set(before.values()), "every shard was started anew"
    assert not any(psutil.pid_exists(pid) for pid in before.values())


def test_a_shard_that_does_not_start_ends_the_start_of_the_others(fleet: Fleet) -> None:
    sharded("n0", "n1", args=["--die-at-start", "no weights here"])
    model_runs.start("tiny", PERSON)
    work()
    assert outcomes() == ["failed", "failed"]
    assert {one.desired for one in Placement.objects.all()} == {"stopped"}, "no crash loop"
    assert rebuild_once() == 0
    assert not [view for agent in fleet for view in agent.server._instances.views() if view.pid and not view.exited_at]


def test_a_replica_that_loses_rank_0_is_rebuilt_too(fleet: Fleet) -> None:
    sharded("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    os.kill(pids()[0], signal.SIGKILL)
    until(
        lambda: set(Placement.objects.values_list("observed", flat=True)) == {"failed"},
        "the other shard to end by itself",
    )
    assert rebuild_once() == 1
    work()
    assert (state(), route()) == (("ready", True), RouteState.READY)


def test_a_cancelled_shard_takes_the_others_along(fleet: Fleet) -> None:
    sharded("n0", "n1", args=["--never-ready"])
    model_runs.start("tiny", PERSON)

    def ordered() -> bool:
        for operation in unfinished():
            worker.run(operation.pk)
        return all(agent.server._instances.views() for agent in fleet[:2])

    until(ordered, "both shards to be ordered")
    cancellation.request(str(Operation.objects.get(node_id_text="n1").pk), PERSON)
    work()
    assert outcomes() == ["cancelled", "cancelled"]
    assert {one.desired for one in Placement.objects.all()} == {"stopped"}


def answered(agent: RealAgent) -> int:
    """Return the number of requests that the engine of a node was given, by its own count."""
    (view,) = agent.server._instances.views()
    target = agent.server._instances.target(view.instance_id)
    with urllib.request.urlopen(f"http://{target.host}:{target.port}/metrics", timeout=10) as answer:
        return int(answer.read().decode().split("sim:requests_total ")[1].split()[0])


async def ask(key: str, times: int) -> list[int]:
    """Requests to ``/v1`` at the same time, through the door of the web process; their statuses."""
    gateway = Gateway(GatewayOptions(max_body_bytes=2**20, max_in_flight=100))
    await gateway.start()
    try:
        return list(await asyncio.gather(*(post(gateway, key) for _ in range(times))))
    finally:
        await gateway.stop()


async def post(gateway: Gateway, key: str) -> int:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
    statuses = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await gateway({**scope, "headers": headers, "client": ("127.0.0.1", 1)}, incoming.get, send)
    (status,) = statuses
    return status


def test_v1_spreads_over_the_replicas_that_are_ready(fleet: Fleet) -> None:
    placed(node_id="n0")
    apply.add_replica("tiny", [("n1", ())], PERSON)
    apply.add_replica("tiny", [("n2", ())], PERSON)
    model_runs.start_all("tiny", PERSON, replica=Placement.objects.get(node_id_text="n0").replica)
    model_runs.start_all("tiny", PERSON, replica=Placement.objects.get(node_id_text="n1").replica)
    work()
    _, key = keys.create("test", actor=PERSON)
    assert asyncio.run(ask(key, 12)) == [200] * 12
    assert [answered(agent) for agent in fleet[:2]] == [6, 6]

    os.kill(Placement.objects.get(node_id_text="n1").observed_view["pid"], signal.SIGKILL)
    until(lambda: Placement.objects.get(node_id_text="n1").observed == "failed", "the loss to be seen")
    assert asyncio.run(ask(key, 6)) == [200] * 6
    assert answered(fleet[0]) == 12
