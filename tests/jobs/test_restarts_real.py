"""Engines that end, with real agents and processes: back by themselves, and one request ends one of them at most."""

import asyncio
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs.loops.restarts import restart_once
from jobs.requests import model_runs
from models_app import keys
from models_app.models import EngineExit, Placement
from models_app.placement import apply
from tests.jobs.real import RealAgent
from tests.jobs.test_replicas_real import Fleet, ask, fleet, sysfs, work
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.django_db(transaction=True)]

__all__ = ["fleet", "sysfs"]


def observed(node_id: str) -> str:
    return Placement.objects.get(node_id_text=node_id).observed


def serve_again() -> None:
    """Do the work of beat and the workers until every model serves."""

    def ready() -> bool:
        restart_once()
        work()
        return set(Placement.objects.values_list("observed", flat=True)) == {"ready"}

    until(ready, "the models to serve again", 60)


def test_a_killed_engine_serves_again_by_itself_and_its_trace_stays(fleet: Fleet) -> None:
    placed(node_id="n0")
    model_runs.start("tiny", PERSON)
    work()
    instances = fleet[0].server._instances
    (view,) = instances.views()
    os.kill(view.pid, signal.SIGKILL)
    until(lambda: observed("n0") == "failed", "the end to be observed")
    serve_again()
    (again,) = instances.views()
    assert again.pid != view.pid
    assert not psutil.pid_exists(view.pid)
    row = EngineExit.objects.get()
    assert (row.exit_code, row.signal, row.was_ready, row.code) == (137, "SIGKILL", True, "engine_exited")
    assert [(run.run, run.exit_signal) for run in again.earlier_runs] == [(1, "SIGKILL")]
    # The log of the run that ended is still there, beside the new one.
    before = fleet[0].run(instances.log(view.instance_id, 50, None, 1))
    assert before.lines


@contextmanager
def poison(agents: Fleet) -> Iterator[list[str]]:
    """Kill every engine that a request reaches, as a request would that its engine does not survive."""
    killed: list[str] = []
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            for agent in agents:
                for view in agent.server._instances.views():
                    if view.state is InstanceState.READY and _busy(agent, view.instance_id):
                        os.kill(view.pid, signal.SIGKILL)
                        killed.append(agent.node_id)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join(20)


def _busy(agent: RealAgent, instance_id: str) -> bool:
    try:
        target = agent.server._instances.target(instance_id)
        with urllib.request.urlopen(f"http://{target.host}:{target.port}/metrics", timeout=2) as answer:
            return "sim:num_requests_running 0" not in answer.read().decode()
    except OSError:
        return False


def test_a_request_that_its_engine_does_not_survive_ends_one_replica_of_three(fleet: Fleet) -> None:
    placed(node_id="n0", args=["--first-token-seconds", "30"])
    for name in ("n1", "n2"):
        apply.add_replica("tiny", [(name, ())], PERSON)
    model_runs.start("tiny", PERSON)
    work()
    key, secret = keys.create("batch", actor=PERSON)
    with poison(fleet) as killed:
        assert asyncio.run(ask(secret, 1)) == [502]
    assert len(killed) == 1
    until(lambda: observed(killed[0]) == "failed", "the end to be observed")
    assert sorted(Placement.objects.values_list("observed", flat=True)) == ["failed", "ready", "ready"]
    (request,) = EngineExit.objects.get().requests
    assert request["keyId"] == key.pk
    assert request["requestId"] in AuditLine.objects.get(action="model.engine-exit").detail
    serve_again()
