"""The running set: what a reboot of its machine ended is started again, and nothing else."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from agent.wire.instances import InstanceState, InstanceView
from audit.models import AuditLine
from jobs import worker
from jobs.loops.resume import autostart, resume_once
from jobs.models import Operation
from jobs.requests import model_runs
from models_app import holds, intents, running, windows
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from nodes.models import MasterIdentity, Node, NodeCondition
from nodes.pki import authority
from tests.models_app.test_running import status
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import DIES, READY, refusal

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _machine() -> None:
    node("pc-1")
    placed()


def the(model_id: str = "tiny") -> Placement:
    return Placement.objects.get(model_id=model_id)


def say(*views: InstanceView, boot: str, seq: int, node_id: str = "pc-1") -> None:
    """The node reports, as the watcher writes it."""
    Node.objects.filter(pk=node_id).update(boot_id=boot, seq=seq, reachability="online")
    running.observe(node_id, status(seq, *views, boot=boot))


def view(placement: Placement, state: str, **fields: Any) -> InstanceView:
    from tests.models_app.test_running import view as made

    return made(placement, state, generation=placement.generation, **fields)


def ran(*model_ids: str, boot: str = "boot-1") -> None:
    """They run by their owner's wish, and the node says so."""
    for model_id in model_ids:
        apply.set_desired_running(the(model_id), "c" * 64)
    say(*(view(the(model_id), "ready") for model_id in model_ids), boot=boot, seq=10)


def rebooted(*model_ids: str, boot: str = "boot-2") -> None:
    """The machine went down and is back: its agent marks what ran as lost."""
    running.mark_unreachable("pc-1")
    lost = (view(the(model_id), "lost", reason="The machine was restarted.") for model_id in model_ids)
    say(*lost, boot=boot, seq=1)


def test_what_ran_before_a_reboot_is_started_again_by_autostart(agent, finish) -> None:
    ran("tiny")
    rebooted("tiny")
    agent.boot = "boot-2"
    assert resume_once() == 1
    operation = Operation.objects.get()
    assert (operation.kind, operation.actor, operation.input["force"]) == ("launch", "system:autostart", False)
    assert resume_once() == 0, "it starts already"
    assert finish(operation.pk).outcome == "succeeded"
    assert (the().observed, resume_once()) == ("ready", 0)
    line = AuditLine.objects.filter(action="model.start", result="accepted").get()
    assert (line.actor, line.detail) == ("system:autostart", "The machine was restarted.")


def test_an_engine_that_was_still_starting_before_the_reboot_counts(agent) -> None:
    apply.set_desired_running(the(), "")
    say(view(the(), "loading"), boot="boot-1", seq=1)
    rebooted("tiny")
    assert resume_once() == 1


def test_an_ordinary_reconnect_on_the_same_boot_starts_nothing(agent) -> None:
    ran("tiny")
    running.mark_unreachable("pc-1")
    say(view(the(), "exited", stop_requested=True), boot="boot-1", seq=20)
    assert (the().desired, the().observed) == ("running", "stopped")
    assert resume_once() == 0


def test_an_engine_of_which_the_same_boot_knows_no_more_is_not_started(agent) -> None:
    ran("tiny")
    say(boot="boot-1", seq=20)
    assert (the().observed, resume_once()) == ("stopped", 0)
    assert not RunningIntent.objects.exists()


def test_what_the_agent_adopted_is_not_started(agent) -> None:
    ran("tiny")
    running.mark_unreachable("pc-1")
    say(view(the(), "ready"), boot="boot-2", seq=1)
    assert resume_once() == 0
    assert RunningIntent.objects.get().boot_id == "boot-2"


def test_a_container_that_was_restarted_within_one_boot_of_its_machine_counts_as_rebooted(agent) -> None:
    ran("tiny")
    rebooted("tiny", boot="boot-1")
    assert resume_once() == 1


def test_a_reboot_before_the_node_was_seen_again_starts_nothing_yet(agent) -> None:
    ran("tiny")
    running.mark_unreachable("pc-1")
    assert resume_once() == 0
    Node.objects.update(boot_id="boot-2")
    assert resume_once() == 0, "nothing was said of it in this boot"


def test_another_machine_does_not_inherit_what_ran_on_the_former(agent) -> None:
    ran("tiny")
    Node.objects.update(uid=uuid4())
    rebooted("tiny")
    assert resume_once() == 0


def test_what_failed_before_the_reboot_stays_down(agent) -> None:
    ran("tiny")
    say(view(the(), "exited", reason="killed"), boot="boot-1", seq=20)
    running.mark_unreachable("pc-1")
    say(view(the(), "exited", reason="killed"), boot="boot-2", seq=1)
    assert (the().observed, resume_once()) == ("failed", 0)


def test_a_stop_by_a_person_cancels_what_waits(agent, finish) -> None:
    node("pc-2")
    ran("tiny")
    rebooted("tiny")
    model_runs.stop("tiny", PERSON)
    assert (resume_once(), RunningIntent.objects.count()) == (0, 0)


def test_a_model_that_is_taken_off_its_node_waits_no_more(agent) -> None:
    ran("tiny")
    rebooted("tiny")
    apply.remove_placement(the(), PERSON, "moved")
    assert (resume_once(), RunningIntent.objects.count()) == (0, 0)


@pytest.mark.parametrize("columns", [{"reachability": "offline"}, {"draining": True}, {"lifecycle": "revoked"}])
def test_recovery_waits_for_a_node_that_takes_nothing_and_then_goes_on(agent, columns) -> None:
    ran("tiny")
    rebooted("tiny")
    Node.objects.update(**columns)
    assert resume_once() == 0
    Node.objects.update(reachability="online", draining=False, lifecycle="approved")
    assert resume_once() == 1


def test_a_held_model_waits_until_it_is_free(agent) -> None:
    ran("tiny")
    rebooted("tiny")
    holds.take("tiny", "job", "job-1", "a benchmark on node pc-1")
    assert resume_once() == 0
    holds.release("tiny", "job-1")
    assert resume_once() == 1


def test_models_of_a_node_take_turns_and_nodes_do_not_wait_for_each_other(agent, finish) -> None:
    node("pc-2")
    placed("second")
    placed("other", "pc-2")
    for model_id in ("tiny", "second", "other"):
        apply.set_desired_running(the(model_id), "")
    say(view(the("tiny"), "ready"), view(the("second"), "ready"), boot="boot-1", seq=1)
    say(view(the("other"), "ready"), boot="boot-1", seq=1, node_id="pc-2")
    rebooted("tiny", "second")
    running.mark_unreachable("pc-2")
    say(view(the("other"), "lost"), boot="boot-2", seq=1, node_id="pc-2")
    agent.boot = "boot-2"
    assert resume_once() == 2
    assert resume_once() == 0
    for row in Operation.objects.all():
        finish(row.pk)
    assert resume_once() == 1


def test_a_start_by_a_person_on_the_node_goes_first(agent) -> None:
    placed("second")
    ran("tiny")
    rebooted("tiny")
    model_runs.start("second", PERSON)
    assert resume_once() == 0


def test_a_model_that_dies_at_its_start_is_not_tried_again(agent, finish) -> None:
    ran("tiny")
    rebooted("tiny")
    agent.boot, agent.plan = "boot-2", [DIES]
    assert resume_once() == 1
    assert finish(Operation.objects.get().pk).outcome == "failed"
    assert (the().desired, resume_once(), RunningIntent.objects.count()) == ("stopped", 0, 0)


def test_a_start_that_memory_refuses_is_told_once_and_not_forced(agent, finish) -> None:
    from agent.wire.errors import AgentCode

    ran("tiny")
    rebooted("tiny")
    agent.boot = "boot-2"
    agent.refusals = [refusal(AgentCode.ADMISSION_REFUSED, "12 GiB are free, 20 are needed.")]
    assert resume_once() == 1
    ended = finish(Operation.objects.get().pk)
    assert (ended.outcome, ended.error["code"]) == ("failed", "admission_refused")
    assert (resume_once(), AuditLine.objects.filter(action="model.start", result="failed").count()) == (0, 1)


def test_what_cannot_even_be_asked_for_is_told_once(agent) -> None:
    from models_app.models import ModelDefinition

    ran("tiny")
    rebooted("tiny")
    ModelDefinition.objects.update(runtime="vllm", delivery="container")
    assert resume_once() == 0
    line = AuditLine.objects.get(action="model.start", result="failed")
    assert (line.error_code, the().desired) == ("image_missing", "stopped")
    assert resume_once() == 0
    assert AuditLine.objects.filter(action="model.start").count() == 1


def test_a_stop_inside_a_maintenance_window_does_not_replace_the_set(agent) -> None:
    from datetime import timedelta

    ran("tiny")
    windows.open_window("job-1", "a benchmark", model_id="tiny", node_id="pc-1", estimate=timedelta(minutes=5))
    say(view(the(), "exited", stop_requested=True), boot="boot-1", seq=20)
    assert RunningIntent.objects.get().boot_id == "boot-1"
    assert resume_once() == 0, "in the same boot nothing is started: the job does that"
    rebooted("tiny")
    windows.close_window("job-1")
    assert resume_once() == 1


def test_a_launch_that_the_node_could_not_be_given_waits_for_it(agent, finish, pass_time) -> None:
    operation = model_runs.start("tiny", PERSON)
    agent.offline = True
    for _ in range(3):
        worker.run(operation.pk)
        pass_time(1900)
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert (operation.outcome, operation.error["code"], the().desired) == ("failed", "node_offline", "running")
    agent.offline = False
    assert resume_once() == 1
    assert Operation.objects.order_by("-id").first().actor == "system:autostart"


def test_the_machine_restarts_during_a_launch_and_it_goes_on(agent, finish) -> None:
    agent.plan = [{"state": InstanceState.LOADING}, {"state": InstanceState.LOST, "reason": "The machine restarted."}]
    operation = model_runs.start("tiny", PERSON)
    worker.run(operation.pk)
    agent.plan = [READY]
    ended = finish(operation.pk)
    assert (ended.outcome, len(agent.launches), agent.running) == ("succeeded", 2, 1)


def test_an_engine_that_takes_its_machine_down_twice_is_left(agent, finish) -> None:
    agent.plan = [{"state": InstanceState.LOST, "reason": "The machine was restarted.", "reason_code": "lost"}]
    ended = finish(model_runs.start("tiny", PERSON).pk)
    assert (ended.outcome, ended.error["code"], len(agent.launches)) == ("failed", "lost", 2)
    assert (the().desired, resume_once()) == ("stopped", 0)


@pytest.mark.parametrize(
    "columns", [{"boot_id": ""}, {"node_uid": "no uid"}, {"cause": "???"}], ids=["no boot", "no uid", "no cause"]
)
def test_a_set_that_cannot_be_read_turns_recovery_of_that_node_off_and_says_so(agent, columns) -> None:
    node("pc-2")
    placed("second")
    placed("other", "pc-2")
    apply.set_desired_running(the("other"), "")
    say(view(the("other"), "ready"), boot="boot-1", seq=1, node_id="pc-2")
    ran("tiny", "second")
    RunningIntent.objects.filter(placement__model_id="second").update(**columns)
    rebooted("tiny", "second")
    running.mark_unreachable("pc-2")
    say(view(the("other"), "lost"), boot="boot-2", seq=1, node_id="pc-2")
    assert resume_once() == 1
    assert Operation.objects.get().model_id_text == "other", "the other node has nothing to do with it"
    said = NodeCondition.objects.get()
    assert (said.node_id, said.code) == ("pc-1", "running_set_unreadable")
    assert "'second'" in said.detail
    apply.set_desired(the("second"), "stopped")
    assert resume_once() == 1, "a stop takes the record away"
    assert not NodeCondition.objects.exists()


def test_what_waits_outlives_a_master_that_ends_in_the_middle(agent, finish) -> None:
    placed("second")
    ran("tiny", "second")
    rebooted("tiny", "second")
    agent.boot = "boot-2"
    assert resume_once() == 1
    first = Operation.objects.get()
    with transaction.atomic():  # another master process on the same data, later
        assert [intent.placement.model_id for intent in intents.pending()] == ["tiny", "second"]
    finish(first.pk)
    assert resume_once() == 1
    assert Operation.objects.exclude(pk=first.pk).get().model_id_text != first.model_id_text


def test_a_fenced_master_starts_nothing(agent) -> None:
    authority.ensure()
    ran("tiny")
    rebooted("tiny")
    MasterIdentity.objects.update(fenced_reason="Another master is obeyed.")
    assert (resume_once(), autostart(), Operation.objects.count()) == (0, 0, 0)


def test_autostart_does_not_mind_a_hold_that_was_left(agent) -> None:
    placed("marked", autoStart=True)
    holds.take("marked", "job", "job-1", "a benchmark on node pc-1")
    assert autostart() == 1
    assert resume_once() == 1
    assert Operation.objects.get().model_id_text == "marked"


def test_at_its_start_the_master_takes_up_what_the_last_run_stopped_on_its_own_machine(agent) -> None:
    Node.objects.update(is_bootstrap=True)
    ran("tiny")
    say(view(the(), "exited", stop_requested=True), boot="boot-1", seq=20)
    assert resume_once() == 0
    autostart()
    assert resume_once() == 1


def test_at_its_start_the_master_leaves_what_others_stopped_on_another_machine(agent) -> None:
    ran("tiny")
    say(view(the(), "exited", stop_requested=True), boot="boot-1", seq=20)
    autostart()
    assert resume_once() == 0


def test_a_shard_is_not_started_alone(agent) -> None:
    ran("tiny")
    Placement.objects.update(shards=2)
    rebooted("tiny")
    assert resume_once() == 0
