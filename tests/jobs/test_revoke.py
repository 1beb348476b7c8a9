"""A node is revoked: refused as a whole, or drained, emptied and forgotten in that order, whatever is killed."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from agent.common import keys
from audit.models import AuditLine
from jobs import ledger, worker
from jobs.kinds import revoke
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation, identity, model_runs
from mirbad.kernel.errors import NotFound
from models_app import holds, routing
from models_app.errors import ModelBusy
from models_app.models import Hold, Placement
from nodes.enrollment import join, tokens
from nodes.errors import ConfirmationRequired, EnrollmentRefused, NodeDraining, NodeRevoked
from nodes.link import transport
from nodes.models import JoinToken, Node, NodePin, RevokedKey
from nodes.pki import authority
from tests.models_app.things import PERSON, node, placed
from tests.nodes.parts import approved, request_for
from tests.standins.memory import READY, MemoryAgent

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def machine(db):
    authority.ensure()
    made = approved("pc-1")
    Node.objects.update(reachability="online", capabilities=node("spare").capabilities)
    Node.objects.filter(pk="spare").delete()
    return made


def started(finish, model_id: str = "tiny") -> Placement:
    placed(model_id, "pc-1")
    assert finish(model_runs.start(model_id, PERSON).pk).outcome == "succeeded"
    return Placement.objects.get(model_id=model_id)


def test_a_node_without_models_is_revoked_for_good(machine, finish) -> None:
    before = routing.version()
    done = finish(identity.revoke("pc-1", "pc-1", PERSON).pk)
    assert (done.outcome, done.result) == ("succeeded", {"unplaced": []})
    row = Node.objects.get()
    assert (row.lifecycle, row.draining) == ("revoked", False)
    assert not NodePin.objects.exists()
    assert list(RevokedKey.objects.values_list("spki_sha256", flat=True)) == [machine.spki]
    assert routing.version() > before
    assert transport.endpoints() == {}
    with pytest.raises(NodeRevoked):
        transport.endpoint("pc-1")
    lines = AuditLine.objects.filter(action="node.revoke").order_by("id").values_list("result", "operation_id_text")
    assert list(lines) == [("accepted", done.pk), ("succeeded", done.pk)]


def test_neither_its_id_nor_its_key_comes_back(machine, finish) -> None:
    rekey = tokens.create("pc-1", actor=PERSON, purpose="rekey")
    finish(identity.revoke("pc-1", "pc-1", PERSON).pk)
    for purpose in ("join", "rekey"):
        with pytest.raises(NodeRevoked):
            tokens.create("pc-1", actor=PERSON, purpose=purpose)
    request = request_for(rekey.token, "pc-1", keys.new_key(), node_uid=machine.answer.node_uid)
    with pytest.raises(EnrollmentRefused):
        join.enroll(request, "192.0.2.10", rekey=True)
    other = tokens.create("pc-2", actor=PERSON)
    with pytest.raises(EnrollmentRefused):
        join.enroll(request_for(other.token, "pc-2", machine.key), "192.0.2.10")
    with pytest.raises(NodeRevoked):
        identity.revoke("pc-1", "pc-1", PERSON)
    assert JoinToken.objects.get(node_id_text="pc-2").used_at is None


@pytest.mark.parametrize("typed", ["", "pc-2", "PC-1"])
def test_the_id_has_to_be_typed(machine, typed: str) -> None:
    with pytest.raises(ConfirmationRequired):
        identity.revoke("pc-1", typed, PERSON)
    assert not Operation.objects.exists()
    assert not Node.objects.get().draining


def test_models_that_stand_there_refuse_it_and_nothing_is_changed(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    with pytest.raises(identity.ModelsPlaced, match="tiny") as refused:
        identity.revoke("pc-1", "pc-1", PERSON)
    assert (refused.value.code, refused.value.http_status) == ("models_placed", 409)
    assert not Node.objects.get().draining
    assert (agent.stops, agent.running) == (0, 1)
    assert AuditLine.objects.get(action="node.revoke").error_code == "models_placed"


def test_a_held_model_refuses_it_and_nothing_is_stopped(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    holds.take("tiny", "move", "move-1", "a move to node pc-9")
    with pytest.raises(ModelBusy, match="a move to node pc-9"):
        identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True)
    assert not Node.objects.get().draining
    assert (agent.stops, agent.running) == (0, 1)


def test_models_are_stopped_and_unplaced_before_the_keys_go(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    operation = identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True)
    assert Node.objects.get().draining
    with pytest.raises((ModelBusy, NodeDraining)):
        model_runs.start("tiny", PERSON)
    done = finish(operation.pk)
    assert (done.outcome, done.result) == ("succeeded", {"unplaced": ["tiny"]})
    assert (agent.stops, agent.running) == (1, 0)
    assert not Placement.objects.exists()
    assert not Hold.objects.exists()
    assert AuditLine.objects.get(action="model.unplace").model_id_text == "tiny"


def test_a_model_that_does_not_stop_lifts_the_drain_again(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    agent.stubborn = True
    failed = finish(identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True).pk)
    assert (failed.outcome, failed.error["code"]) == ("failed", "stop_timeout")
    row = Node.objects.get()
    assert (row.lifecycle, row.draining) == ("approved", False)
    assert Placement.objects.count() == 1
    assert not Hold.objects.exists()


def test_a_node_that_was_draining_stays_so_when_its_revoke_fails(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    Node.objects.update(draining=True)
    agent.stubborn = True
    assert finish(identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True).pk).outcome == "failed"
    assert Node.objects.get().draining


def test_a_machine_that_is_gone_is_revoked_without_asking_it(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    agent.offline = True
    Node.objects.update(reachability="offline")
    done = finish(identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True).pk)
    assert (done.outcome, done.result) == ("succeeded", {"unplaced": ["tiny"]})
    assert agent.stops == 0
    assert "cannot be reached" in AuditLine.objects.get(action="model.unplace").detail


def test_a_machine_that_goes_in_the_middle_is_waited_for_only_so_long(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    operation = identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True)
    agent.offline = True
    done = finish(operation.pk)
    assert done.outcome == "succeeded"
    assert done.finished_at - done.created_at >= timedelta(seconds=30)


def test_an_open_launch_is_ended_first(machine, agent: MemoryAgent, finish, pass_time) -> None:
    agent.plan = [{}] * 50
    placed(node_id="pc-1")
    launch = model_runs.start("tiny", PERSON)
    worker.run(launch.pk)
    operation = identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True)
    for _ in range(40):
        for open_one in unfinished().order_by("id"):
            worker.run(open_one.pk)
        pass_time(1)
    operation.refresh_from_db()
    launch.refresh_from_db()
    assert (operation.outcome, launch.outcome, agent.running) == ("succeeded", "cancelled", 0)


def test_giving_up_lifts_the_drain(machine, agent: MemoryAgent, finish) -> None:
    started(finish)
    operation = identity.revoke("pc-1", "pc-1", PERSON, unplace_models=True)
    cancellation.request(operation.pk, PERSON)
    assert finish(operation.pk).outcome == "cancelled"
    row = Node.objects.get()
    assert (row.lifecycle, row.draining, Hold.objects.count()) == ("approved", False, 0)


def test_asked_twice_it_is_the_same_revoke(machine) -> None:
    first = identity.revoke("pc-1", "pc-1", PERSON)
    assert identity.revoke("pc-1", "pc-1", PERSON).pk == first.pk


def test_what_is_not_there_cannot_be_revoked(machine) -> None:
    with pytest.raises(NotFound):
        identity.revoke("pc-9", "pc-9", PERSON)


class Killed(BaseException):
    """The worker's process is gone."""


class Boundaries:
    """Wraps functions; the process is gone once `kill_at` of their calls have returned."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at, self._crossed = kill_at, 0

    def around(self, function):
        def trapped(*args, **kwargs):
            answer = function(*args, **kwargs)
            self._crossed += 1
            if self._crossed == self._kill_at:
                raise Killed
            return answer

        return trapped

    def set_traps(self, patch: pytest.MonkeyPatch, agent: MemoryAgent) -> None:
        """Trap each boundary: after a claim, around each call, inside and after each write."""
        for module, names in (
            (ledger, ("claim", "_update", "_add_event", "write")),
            (revoke.apply, ("remove_placement",)),
            (revoke.registry, ("revoke",)),
        ):
            for name in names:
                patch.setattr(module, name, self.around(getattr(module, name)))
        patch.setattr("nodes.link.client.call", self.around(agent.call))


def _with_a_running_model(node_id: str, model_id: str, agent: MemoryAgent, finish) -> None:
    approved(node_id)
    Node.objects.filter(pk=node_id).update(reachability="online", capabilities=Node.objects.get(pk="pc-1").capabilities)
    agent.engines.clear()
    placed(model_id, node_id)
    agent.plan = [READY]
    assert finish(model_runs.start(model_id, PERSON).pk).outcome == "succeeded"


def _work_through(operation_id: str, pass_time: Callable[[float], None]) -> bool:
    """Run the operation to its end by one worker after the other. Return whether one was killed."""
    killed = False
    for _ in range(60):
        if not unfinished().filter(pk=operation_id).exists():
            break
        try:
            worker.run(operation_id)
        except Killed:
            killed = True
            pass_time(60)
        pass_time(2)
    return killed


@pytest.mark.faults
def test_a_revoke_survives_a_kill_at_every_boundary(
    machine, agent: MemoryAgent, finish, pass_time: Callable[[float], None], monkeypatch
) -> None:
    for kill_at in range(1, 60):
        node_id = f"n-{kill_at}"
        _with_a_running_model(node_id, f"m-{kill_at}", agent, finish)
        stops = agent.stops
        operation = identity.revoke(node_id, node_id, PERSON, unplace_models=True)
        with monkeypatch.context() as patch:
            Boundaries(kill_at).set_traps(patch, agent)
            killed = _work_through(operation.pk, pass_time)
        operation.refresh_from_db()
        assert operation.outcome == "succeeded", (kill_at, operation.stage, operation.error)
        assert (agent.stops - stops, agent.running) == (1, 0), kill_at
        assert Node.objects.get(pk=node_id).lifecycle == "revoked"
        assert AuditLine.objects.filter(action="node.revoke", node_id_text=node_id, result="succeeded").count() == 1
        assert not Hold.objects.exists()
        if not killed:
            break
    assert kill_at > 12
