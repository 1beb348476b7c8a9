"""Launches and the watcher against a real agent: mutual TLS, journal, engine processes."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from jobs import worker
from jobs.loops.resume import resume_once
from jobs.loops.watch import Watcher, to_watch
from jobs.models import Operation
from jobs.requests import model_runs
from models_app.models import Placement
from nodes import leases
from nodes.models import Node
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def agent(transactional_db, tmp_path) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path).begin()
    yield made
    made.clear()


@pytest.fixture
def watched(agent) -> Iterator[RealAgent]:
    """The agent with a watcher at work."""
    watcher, loop, ended = None, asyncio.new_event_loop(), threading.Event()

    async def watch() -> None:
        nonlocal watcher
        watcher = Watcher()
        await watcher.run()

    def run() -> None:
        loop.run_until_complete(watch())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    until(lambda: agent.node.reachability == "online", "the node to be online")
    yield agent
    loop.call_soon_threadsafe(watcher.stop)
    assert ended.wait(20)


def run(operation: Operation, seconds: float = 40) -> Operation:
    def over() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return operation.finished_at is not None

    until(over, f"{operation.kind} to end: {operation.progress}", seconds)
    return operation


def placement() -> Placement:
    return Placement.objects.get()


def seen(state: str, seconds: float = 20) -> Placement:
    until(lambda: placement().observed == state, f"{state} to be seen", seconds)
    return placement()


def test_a_launch_a_restart_and_a_stop_on_a_real_engine(agent) -> None:
    agent.connect()
    placed(node_id="local", args=["--start-seconds", "0.5"], secretEnv={"SIM_S": "canary-12345"})
    started = run(model_runs.start("tiny", PERSON))
    assert (started.outcome, started.error) == ("succeeded", {})
    assert started.result["startSeconds"] >= 0.5
    first = placement()
    assert (first.observed, first.desired) == ("ready", "running")
    assert first.observed_config_hash == first.desired_config_hash
    pid = first.observed_view["pid"]
    assert psutil.pid_exists(pid)
    assert run(model_runs.restart("tiny", PERSON)).outcome == "succeeded"
    assert not psutil.pid_exists(pid)
    assert run(model_runs.stop("tiny", PERSON)).outcome == "succeeded"
    assert placement().observed == "stopped"
    rows = str(Operation.objects.values_list()) + str(Placement.objects.values_list())
    assert "canary" not in rows


def test_an_engine_that_dies_at_start_shows_its_last_lines(agent) -> None:
    agent.connect()
    placed(node_id="local", args=["--die-at-start", "no such weights: tiny.bin"])
    failed = run(model_runs.start("tiny", PERSON))
    assert failed.outcome == "failed"
    assert any("no such weights: tiny.bin" in line for line in failed.error["lines"])
    assert (placement().observed, placement().desired) == ("failed", "stopped")


def test_an_agent_that_restarts_during_a_launch_is_waited_for(agent) -> None:
    agent.connect()
    placed(node_id="local", args=["--start-seconds", "2"])
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    agent.end()
    worker.run(operation.pk)
    until(lambda: worker.run(operation.pk) or Operation.objects.get().error, "the outage to be seen")
    operation.refresh_from_db()
    assert operation.error["code"] == "node_offline"
    agent.begin()
    assert run(operation).outcome == "succeeded"


def test_a_stop_during_a_launch_leaves_no_process(agent) -> None:
    agent.connect()
    placed(node_id="local", args=["--never-ready"])
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    until(lambda: agent.server._instances.views()[0].pid, "the engine's process")
    pid = agent.server._instances.views()[0].pid
    assert model_runs.stop("tiny", PERSON).pk == operation.pk
    assert run(operation).outcome == "cancelled"
    until(lambda: not psutil.pid_exists(pid), "the process to be gone")


def test_the_watcher_sees_a_node_come_and_an_engine_die(watched) -> None:
    placed(node_id="local")
    run(model_runs.start("tiny", PERSON))
    pid = seen("ready").observed_view["pid"]
    os.kill(pid, signal.SIGKILL)
    failed = seen("failed")
    assert failed.desired == "running"
    assert failed.observed_reason
    assert resume_once() == 0, "no crash loop"


def test_the_watcher_sees_a_node_go_and_come_back(watched, monkeypatch) -> None:
    from datetime import timedelta

    placed(node_id="local")
    run(model_runs.start("tiny", PERSON))
    seen("ready")
    monkeypatch.setattr("nodes.reachability.OFFLINE_AFTER", timedelta(seconds=1))
    watched.end()
    until(lambda: watched.node.reachability == "offline", "the node to be offline")
    seen("unknown")
    watched.begin()
    until(lambda: watched.node.reachability == "online", "the node to be back")
    assert seen("ready").observed_view["pid"], "the engine lived on and was adopted"


def test_one_watcher_works_at_a_time(watched) -> None:
    from datetime import timedelta

    assert not leases.take("watcher", "another", timedelta(seconds=5))
    second = Watcher()
    assert asyncio.run(second.round()) is False


def test_revoked_nodes_are_not_watched_and_new_ones_are(agent) -> None:
    assert set(to_watch()) == {"local"}
    before = to_watch()["local"]
    Node.objects.update(port=1)
    assert to_watch()["local"] != before, "another address is another line"
    Node.objects.update(lifecycle="revoked")
    assert to_watch() == {}
