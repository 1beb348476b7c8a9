"""Engines that end by themselves are started again, with growing pauses, and are stopped when they keep ending."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.wire.errors import AgentCode
from agent.wire.instances import BrokenRequest, InstanceState
from audit.models import AuditLine
from jobs import worker
from jobs.loops import replicas, restarts
from jobs.loops.restarts import PAUSES, restart_once
from jobs.loops.resume import resume_once
from jobs.models import Operation
from jobs.requests import model_runs
from mirbad.kernel import clock
from models_app import holds, running
from models_app.models import ApiKey, EngineExit, Hold, ModelDefinition, Placement
from nodes import fencing
from nodes.models import Node
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import DIES, READY, MemoryAgent, refusal

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PassTime = Callable[[float], None]
Finish = Callable[..., Operation]
_RUN = itertools.count()


@pytest.fixture
def serving(agent: MemoryAgent, finish: Finish) -> Placement:
    """A model that serves on a node."""
    node("pc-1", boot_id="boot-1")
    placed()
    assert finish(model_runs.start("tiny", PERSON).pk).outcome == "succeeded"
    return Placement.objects.get()


def ends(agent: MemoryAgent, placement: Placement, **fields: Any) -> None:
    """The engine of `placement` ends, and its node says so."""
    values: dict[str, Any] = {
        "state": InstanceState.EXITED,
        "reason": "The engine was ended by SIGSEGV (exit code 139).",
        "reason_code": "engine_exited",
        "exit_code": 139,
        "exit_signal": "SIGSEGV",
        "started_at": f"2026-01-01T00:00:{next(_RUN) % 60:02}Z",
        "ready_at": "2026-01-01T00:01:00Z",
        "last_lines": ("loading", "segmentation fault"),
    }
    engine = agent.engines[str(placement.pk)]
    engine.view, engine.script = engine.view.model_copy(update=values | fields), []
    running.observe(placement.node_id_text, agent._read("status"))


def until_restarted(pass_time: PassTime) -> float:
    """Let time pass until a restart is opened; return how long that took."""
    for second in range(600):
        if restart_once():
            return float(second)
        pass_time(1)
    raise AssertionError("it was not restarted")


def test_an_engine_that_ends_is_started_again_by_an_ordinary_launch(agent, serving, finish, pass_time) -> None:
    ends(agent, serving)
    assert until_restarted(pass_time) <= 2
    operation = Operation.objects.get(actor="system:restart")
    assert (operation.kind, operation.stage) == ("launch", "checking")
    assert restart_once() == 0, "it starts already"
    assert finish(operation.pk).outcome == "succeeded"
    row = Placement.objects.get()
    assert (row.observed, row.desired, row.exits, row.restart_at, restart_once()) == ("ready", "running", 1, None, 0)
    lines = AuditLine.objects.filter(actor="system:restart").order_by("id")
    assert [(line.action, line.result) for line in lines] == [("model.start", "accepted"), ("model.start", "succeeded")]


def test_an_engine_that_served_and_ended_before_its_start_was_over_is_started_again(agent, finish, pass_time) -> None:
    """A request may end it within the second in which no worker looks."""
    node("pc-1", boot_id="boot-1")
    placed()
    agent.plan = [{"state": InstanceState.LOADING}] * 9
    operation = model_runs.start("tiny", PERSON)
    for _ in range(4):
        worker.run(operation.pk)
        pass_time(1)
    ends(agent, Placement.objects.get(), start_seconds=0.4)
    done = finish(operation.pk)
    assert (done.outcome, done.result) == ("succeeded", {"startSeconds": 0.4})
    assert done.events.latest("pk").text == "Ready after 0.4 s. It has ended since."
    assert (Placement.objects.get().desired, EngineExit.objects.get().was_ready) == ("running", True)
    agent.plan = [READY]
    assert until_restarted(pass_time) <= 2
    assert finish(Operation.objects.get(actor="system:restart").pk).outcome == "succeeded"


def test_the_pauses_grow_and_the_time_of_the_next_start_is_known(agent, serving, finish, pass_time) -> None:
    took = []
    for pause in PAUSES:
        ends(agent, serving)
        assert restart_once() == 0
        planned = Placement.objects.get().restart_at
        assert abs((planned - clock.now() - pause).total_seconds()) < 1
        took.append(until_restarted(pass_time))
        finish(Operation.objects.order_by("-created_at")[0].pk)
    assert took == [pytest.approx(pause.total_seconds(), abs=1.1) for pause in PAUSES]


def test_one_that_keeps_ending_is_stopped_with_the_reason(agent, serving, finish, pass_time, settings_of) -> None:
    for _ in range(5):
        ends(agent, serving)
        until_restarted(pass_time)
        finish(Operation.objects.order_by("-created_at")[0].pk)
    ends(agent, serving)
    assert restart_once() == 0
    row = Placement.objects.get()
    assert (row.desired, row.restart_at) == ("stopped", None)
    assert "after 5 automatic restarts within 15 minutes" in row.halted
    line = AuditLine.objects.get(action="model.stop")
    assert (line.actor, line.detail) == ("system:restart", row.halted)
    pass_time(3600)
    assert (restart_once(), resume_once()) == (0, 0)
    # A person starts it: the reason goes, and the count begins anew.
    agent.engines.clear()
    finish(model_runs.start("tiny", PERSON).pk)
    assert Placement.objects.get().halted == ""
    ends(agent, serving)
    assert until_restarted(pass_time) <= 2


@pytest.fixture
def settings_of() -> None:
    """The defaults are meant: five restarts within fifteen minutes."""
    assert (restarts.settings().engine_restarts, restarts.settings().engine_restart_window) == (
        5,
        timedelta(minutes=15),
    )


def test_restarts_of_another_hour_do_not_count(agent, serving, finish, pass_time) -> None:
    for _ in range(8):
        ends(agent, serving)
        assert until_restarted(pass_time) <= 2
        finish(Operation.objects.order_by("-created_at")[0].pk)
        pass_time(3600)
    assert (Placement.objects.get().exits, EngineExit.objects.count()) == (8, 8)


def test_never_stays_down_and_says_so(agent, serving, pass_time) -> None:
    ModelDefinition.objects.update(restart_policy="never")
    ends(agent, serving)
    assert restart_once() == 0
    row = Placement.objects.get()
    assert (row.desired, "restart policy is never" in row.halted) == ("stopped", True)
    pass_time(3600)
    assert restart_once() == 0


def test_a_restart_that_fails_counts_and_is_tried_again(agent, serving, finish, pass_time) -> None:
    agent.plan = [DIES]
    ends(agent, serving)
    for number in range(5):
        until_restarted(pass_time)
        assert finish(Operation.objects.order_by("-created_at")[0].pk).outcome == "failed"
        assert Placement.objects.get().desired == "running", number
    assert restart_once() == 0
    assert "after 5 automatic restarts" in Placement.objects.get().halted


def test_memory_that_is_not_free_yet_is_asked_for_again(agent, serving, finish, pass_time) -> None:
    ends(agent, serving)
    agent.refusals = [refusal(AgentCode.ADMISSION_REFUSED, "the memory is not free")]
    until_restarted(pass_time)
    assert finish(Operation.objects.order_by("-created_at")[0].pk).outcome == "failed"
    until_restarted(pass_time)
    assert finish(Operation.objects.order_by("-created_at")[0].pk).outcome == "succeeded"


def test_what_will_never_start_is_stopped_at_once(agent, serving, finish, pass_time) -> None:
    ends(agent, serving)
    agent.refusals = [refusal(AgentCode.SPEC_REJECTED, "this agent refuses the argument")]
    until_restarted(pass_time)
    finish(Operation.objects.order_by("-created_at")[0].pk)
    assert (Placement.objects.get().desired, restart_once()) == ("stopped", 0)


@pytest.mark.parametrize("columns", [{"reachability": "offline"}, {"draining": True}])
def test_on_a_node_that_takes_no_model_it_waits(agent, serving, pass_time, columns) -> None:
    ends(agent, serving)
    Node.objects.update(**columns)
    pass_time(60)
    assert (restart_once(), Placement.objects.get().desired) == (0, "running")


def test_a_held_model_and_a_fenced_master_restart_nothing(agent, serving, pass_time, monkeypatch) -> None:
    ends(agent, serving)
    pass_time(60)
    holds.take("tiny", "job", "job-1", "a benchmark")
    assert restart_once() == 0
    Hold.objects.all().delete()
    monkeypatch.setattr(fencing, "is_fenced", lambda: True)
    assert restart_once() == 0


def test_a_stop_by_a_person_during_the_pause_is_obeyed(agent, serving, finish, pass_time) -> None:
    ends(agent, serving)
    restart_once()
    finish(model_runs.stop("tiny", PERSON).pk)
    pass_time(600)
    assert (restart_once(), Placement.objects.get().restart_at) == (0, None)


def test_docker_that_was_restarted_is_no_death_and_the_model_returns(agent, serving, finish, pass_time) -> None:
    reason = "Docker was restarted on this node, which ended its containers."
    lost = {"state": InstanceState.LOST, "reason": reason, "reason_code": "docker_restarted", "exit_code": 143}
    ModelDefinition.objects.update(restart_policy="never")
    ends(agent, serving, **lost)
    row = Placement.objects.get()
    assert (row.observed, row.desired, row.exits, restart_once(), resume_once()) == ("stopped", "running", 0, 0, 1)
    operation = Operation.objects.get(actor="system:autostart")
    assert operation.events.first().text == reason
    assert finish(operation.pk).outcome == "succeeded"


def test_many_ended_engines_cost_no_more_queries_than_one(agent, serving) -> None:
    ends(agent, serving)
    restart_once()  # writes the time of the start
    with CaptureQueriesContext(connection) as one:
        restart_once()
    for number in range(2, 12):
        placed(f"m{number}")
    Placement.objects.update(desired="running", observed="failed")
    EngineExit.objects.bulk_create(
        EngineExit(placement_id_text=str(row.pk), run="r", model_id_text="m", node_id_text="pc-1", at=clock.now())
        for row in Placement.objects.all()
    )
    restart_once()
    with CaptureQueriesContext(connection) as many:
        restart_once()
    assert len(many) <= len(one)


def test_a_replica_over_nodes_follows_the_policy_too(agent, pass_time) -> None:
    for name in ("pc-1", "pc-2"):
        node(name, boot_id="boot-1")
    first = placed()
    Placement.objects.filter(pk=first.pk).update(shards=2)
    Placement.objects.create(
        model_id="tiny", node_id_text="pc-2", replica=first.replica, shard=1, shards=2, observed="ready"
    )
    Placement.objects.update(desired="running")
    Placement.objects.filter(pk=first.pk).update(observed="failed")
    ModelDefinition.objects.update(restart_policy="never")
    assert replicas.rebuild_once() == 1
    assert {row.desired for row in Placement.objects.all()} == {"stopped"}
    assert all("restart policy of the model is never" in row.halted for row in Placement.objects.all())


def test_who_had_requests_at_two_ends_is_named(agent, serving, finish, pass_time) -> None:
    key = ApiKey.objects.create(name="batch", digest="d" * 64)
    other = ApiKey.objects.create(name="chat", digest="e" * 64)
    first = (BrokenRequest(request_id="poison-1", key_id=key.pk), BrokenRequest(request_id="hi", key_id=other.pk))
    ends(agent, serving, broken_requests=first)
    line = AuditLine.objects.get(action="model.engine-exit")
    assert f"poison-1 of key 'batch' (id {key.pk})" in line.detail
    assert "within 24 hours" not in line.detail
    until_restarted(pass_time)
    finish(Operation.objects.order_by("-created_at")[0].pk)
    ends(agent, serving, broken_requests=(BrokenRequest(request_id="poison-2", key_id=key.pk),))
    named = AuditLine.objects.filter(action="model.engine-exit").latest("id").detail
    assert f"Key 'batch' (id {key.pk}) had requests in progress at 2 of 2 ends within 24 hours." in named
    assert "chat" not in named
