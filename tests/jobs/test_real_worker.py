"""Real Celery on a real broker: killed, emptied, cut off. Rows are the truth: nothing is lost, nothing doubled."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jobs.models import Operation
from jobs.requests import model_runs
from mirbad.kernel import conf
from mirbad.kernel.errors import Unavailable
from mirbad.tasking import heartbeat
from mirbad.tasking.app import PUBLISH_TIMEOUT_SECONDS, broker_url
from models_app.models import Placement
from nodes.pki import authority
from tests.jobs.processes import BEAT, WORKER, Broker, Program, running_broker
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON, placed
from tests.waiting import pause, stays, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as made:
        yield made


def rung(redis_url: str) -> tuple[bool, float]:
    """Return the result of a signal from another process at that address, and the seconds it took."""
    code = (
        "import time; import django; django.setup(); from mirbad.tasking.tasks import TaskSignal;"
        "began = time.monotonic();"
        "answer = TaskSignal('jobs.step').enqueue('op-1'); print(int(answer), time.monotonic() - began)"
    )
    environ = {**os.environ, "MIRBAD_REDIS_URL": redis_url}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    answer, seconds = done.stdout.splitlines()[-1].split()
    return answer == "1", float(seconds)


@pytest.fixture
def agent(transactional_db, tmp_path) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path / "node").begin()
    made.connect()
    yield made
    made.clear()


def launches(agent: RealAgent) -> list[str]:
    """Operation ids of the launches that the agent's journal says were done."""
    found = []
    for path in (agent.config.state_dir / "journal").glob("*.json"):
        view = json.loads(path.read_bytes())["view"]
        if view["route"].startswith("PUT") and "instances" in view["route"] and view["state"] == "succeeded":
            found.append(view["operationId"].split(":")[0])
    return sorted(found)


def finished(count: int) -> bool:
    return Operation.objects.filter(finished_at__isnull=False).count() == count


def test_a_broker_address_is_told_to_celery_in_its_own_form() -> None:
    assert broker_url("unix:///run/x.sock") == "redis+socket:///run/x.sock"
    assert broker_url("redis://:secret@host:6379/1") == "redis://:secret@host:6379/1"


def test_a_ring_is_heard_by_a_broker_that_is_there(broker) -> None:
    assert rung(broker.url)[0] is True
    assert broker.client().llen("mirbad:mirbad") == 1


def test_a_ring_does_not_hang_when_the_broker_is_away(tmp_path) -> None:
    answer, seconds = rung(f"unix://{tmp_path}/none.sock")
    assert answer is False
    assert seconds < 2


def test_a_ring_does_not_hang_when_the_broker_is_silent() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        answer, seconds = rung(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
    assert answer is False
    assert seconds < 2 * PUBLISH_TIMEOUT_SECONDS + 1


def test_signs_of_life_have_an_age_and_end_with_the_process(broker, monkeypatch) -> None:
    value = conf.settings().model_copy(update={"redis_url": broker.url})
    monkeypatch.setattr("mirbad.tasking.heartbeat.settings", lambda: value)
    healthy = [True]
    beat = heartbeat.start("watcher", lambda: healthy[0])
    assert beat is not None
    until(heartbeat.alive, "a sign of life")
    assert set(heartbeat.alive()) == {"watcher"}
    assert 0 <= heartbeat.alive()["watcher"] < heartbeat.LIFE_SECONDS
    beat.stop()
    assert heartbeat.alive() == {}
    stuck = heartbeat.start("worker", lambda: False)
    assert stuck is not None
    stays(lambda: heartbeat.alive() == {}, "a process that is stuck gives no sign of life", 0.2)
    stuck.stop()
    broker.kill()
    with pytest.raises(Unavailable):
        heartbeat.alive()


@pytest.mark.django_db(transaction=True)
def test_killed_workers_and_an_emptied_broker_lose_and_repeat_nothing(agent, broker, tmp_path) -> None:
    worker = Program(tmp_path, broker.url, *WORKER).start()
    beat = Program(tmp_path, broker.url, *BEAT).start()
    try:
        for number in range(4):
            placed(f"m{number}", "local", args=["--start-seconds", "1"])
            model_runs.start(f"m{number}", PERSON)
        for seconds in (2.5, 0.4, 0.9, 1.3):
            pause(seconds)
            worker.kill()
            broker.client().flushall()
            worker.start()
        until(lambda: finished(4), f"all launches to end\n{worker.said[-3000:]}", 120)
    finally:
        worker.kill()
        beat.kill()
    operations = Operation.objects.all()
    assert [(row.outcome, row.error) for row in operations] == [("succeeded", {})] * 4
    assert launches(agent) == sorted(row.pk for row in operations), "each engine was started once"
    assert set(Placement.objects.values_list("observed", flat=True)) == {"ready"}


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_killed_and_comes_back_is_used_again(agent, broker, tmp_path) -> None:
    worker = Program(tmp_path, broker.url, *WORKER).start()
    beat = Program(tmp_path, broker.url, *BEAT).start()
    try:
        placed("m0", "local", args=["--start-seconds", "1"])
        model_runs.start("m0", PERSON)
        until(lambda: Operation.objects.filter(fence__gt=0).exists(), "a first step", 60)
        broker.kill()
        pause(1)
        broker.start()
        until(lambda: finished(1), f"the launch to end\n{worker.said[-3000:]}", 90)
    finally:
        worker.kill()
        beat.kill()
    row = Operation.objects.get()
    assert (row.outcome, launches(agent)) == ("succeeded", [row.pk])
