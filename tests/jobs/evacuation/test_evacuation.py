"""A node is drained and its models are moved off, one after another, each ready elsewhere before it stops here."""

from collections.abc import Callable

import pytest

from agent.wire.capability import Delivery, Runtime
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation, evacuation, model_runs, moves
from mirbad.kernel.errors import Conflict, MirbadError
from models_app import holds
from models_app.models import Hold, ModelSource, Placement
from nodes import registry
from nodes.errors import NodeRevoked
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.models_app.things import PERSON, capabilities, node, placed
from tests.standins.memory import DIES, READY

pytestmark = [pytest.mark.app, pytest.mark.django_db]

Turn = Callable[..., None]


@pytest.fixture(autouse=True)
def _machines() -> None:
    node("pc-1")
    node("pc-2")


@pytest.fixture
def turn(pass_time) -> Turn:
    """Return a function that does the work of workers and beat in a few seconds, some times over."""

    def run(times: int = 1, look: Callable[[], None] = lambda: None) -> None:
        for _ in range(times):
            evacuation.open_all()
            for operation_id in list(unfinished().order_by("id").values_list("pk", flat=True)):
                worker.run(operation_id)
                look()
            pass_time(6)

    return run


def running(finish, *model_ids: str) -> None:
    for model_id in model_ids:
        placed(model_id)
        finish(model_runs.start(model_id, PERSON).pk)


def where() -> dict[str, str]:
    return dict(Placement.objects.filter(routed=True).values_list("model_id", "node_id_text"))


def the(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def test_every_model_goes_one_after_another_and_is_up_before_it_stops(agent, finish, turn) -> None:
    running(finish, "one", "two", "three")
    operation = evacuation.request("pc-1", PERSON)
    assert (operation.kind, operation.concurrency_group, operation.target_id) == ("evacuate", "placement", "pc-1")
    assert Node.objects.get(pk="pc-1").draining
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, unfinished().filter(kind="move").count())
        routed = Placement.objects.filter(routed=True)
        assert routed.count() == 3
        assert not routed.exclude(observed="ready").exists(), "each model can be asked at every moment"

    turn(40, look)
    assert (the(operation).outcome, operation.result) == ("succeeded", {"moved": ["one", "two", "three"]})
    assert (most, where()) == (1, {"one": "pc-2", "two": "pc-2", "three": "pc-2"})
    assert (agent.running, agent.stops, Hold.objects.count()) == (3, 3, 0)
    assert Node.objects.get(pk="pc-1").draining, "the node stays drained"
    moved = Operation.objects.filter(kind="move")
    assert {(row.actor, row.input["onBehalfOf"], row.input["mode"]) for row in moved} == {
        (PERSON.name, operation.pk, "handover")
    }
    lines = AuditLine.objects.filter(action="node.drain").order_by("id").values_list("result", "detail")
    assert list(lines) == [("succeeded", ""), ("accepted", "evacuation"), ("succeeded", "evacuation")]


def test_a_model_that_is_stopped_is_moved_as_well_and_stays_stopped(agent, finish, turn) -> None:
    placed("idle")
    operation = evacuation.request("pc-1", PERSON)
    turn(20)
    assert (the(operation).outcome, where()) == ("succeeded", {"idle": "pc-2"})
    assert Placement.objects.get().desired == "stopped"
    assert agent.launches == []


def test_an_empty_node_is_evacuated_at_once(agent, turn) -> None:
    operation = evacuation.request("pc-1", PERSON)
    turn()
    assert the(operation).outcome == "succeeded"


def test_asked_twice_it_is_the_same_operation(agent, finish) -> None:
    running(finish, "one")
    first = evacuation.request("pc-1", PERSON)
    assert evacuation.request("pc-1", PERSON).pk == first.pk
    assert Operation.objects.filter(kind="evacuate").count() == 1


def test_two_rings_open_one_move(agent, finish) -> None:
    running(finish, "one", "two")
    operation = evacuation.request("pc-1", PERSON)
    opened = evacuation.open_next(operation.pk)
    assert opened is not None
    assert evacuation.open_next(operation.pk) is None
    assert unfinished().filter(kind="move").count() == 1


def test_it_pauses_when_a_model_has_nowhere_to_go_and_says_why_and_goes_on_by_itself(agent, finish, turn) -> None:
    Node.objects.filter(pk="pc-2").delete()
    running(finish, "one")
    operation = evacuation.request("pc-1", PERSON)
    turn(3)
    assert the(operation).outcome == "open"
    assert operation.progress["text"] == (
        "0 of 1 models moved. Paused. Model one has nowhere to go: no other node serves and takes work."
    )
    node("pc-3")
    turn(20)
    assert (the(operation).outcome, where()) == ("succeeded", {"one": "pc-3"})


def test_a_node_that_cannot_run_the_model_is_named_with_its_reason(agent, finish, turn) -> None:
    lacking = capabilities(unavailable={(Runtime.SIM, Delivery.PROCESS): "it is switched off"})
    Node.objects.filter(pk="pc-2").update(capabilities=lacking.to_wire())
    running(finish, "one")
    operation = evacuation.request("pc-1", PERSON)
    turn(2)
    assert "Node 'pc-2' cannot run sim as a process: it is switched off." in the(operation).progress["text"]


def test_models_that_can_go_are_moved_although_another_one_cannot(agent, finish, turn) -> None:
    running(finish, "stays", "goes")
    source = ModelSource.objects.create(model_id="stays", kind="folder", folder="stays")
    operation = evacuation.request("pc-1", PERSON)
    turn(20)
    assert the(operation).outcome == "open"
    assert where() == {"stays": "pc-1", "goes": "pc-2"}
    assert "1 of 2 models moved. Paused. The weights of model stays are in a folder" in operation.progress["text"]
    source.delete()
    turn(20)
    assert (the(operation).outcome, where()["stays"]) == ("succeeded", "pc-2")


def test_a_held_model_is_waited_for(agent, finish, turn) -> None:
    running(finish, "one")
    holds.take("one", "job", "job-1", "a benchmark on node pc-1")
    operation = evacuation.request("pc-1", PERSON)
    turn(3)
    assert "a benchmark on node pc-1 holds it" in the(operation).progress["text"]
    holds.release("one", "job-1")
    turn(20)
    assert the(operation).outcome == "succeeded"


def test_a_move_that_fails_is_tried_again_and_then_left(agent, finish, turn) -> None:
    running(finish, "one")
    agent.plan = [DIES]
    operation = evacuation.request("pc-1", PERSON)
    turn(30)
    assert the(operation).outcome == "open"
    assert Operation.objects.filter(kind="move", outcome="failed").count() == 3
    assert "could not be moved 3 times" in operation.progress["text"]
    assert where() == {"one": "pc-1"}
    assert Placement.objects.get().observed == "ready", "it serves where it was"
    agent.plan = [READY]
    turn(110)
    assert the(operation).outcome == "succeeded", "later it is tried once more"


def test_a_cancel_puts_the_move_back_keeps_what_was_moved_and_lets_work_in(agent, finish, turn) -> None:
    running(finish, "one", "two")
    operation = evacuation.request("pc-1", PERSON)
    while not Placement.objects.filter(node_id_text="pc-2", routed=True).exists():
        turn()
    while not unfinished().filter(kind="move").exists():
        turn()
    cancellation.request(operation.pk, PERSON)
    turn(20)
    assert the(operation).outcome == "cancelled"
    assert where() == {"one": "pc-2", "two": "pc-1"}
    assert not Node.objects.get(pk="pc-1").draining
    assert (agent.running, unfinished().count(), Hold.objects.count()) == (2, 0, 0)


def test_a_node_that_was_draining_before_stays_so_after_a_cancel(agent, finish, turn) -> None:
    running(finish, "one")
    registry.drain("pc-1", PERSON)
    operation = evacuation.request("pc-1", PERSON)
    cancellation.request(operation.pk, PERSON)
    turn(5)
    assert (the(operation).outcome, Node.objects.get(pk="pc-1").draining) == ("cancelled", True)


def test_an_undrain_ends_it(agent, finish, turn) -> None:
    running(finish, "one", "two")
    operation = evacuation.request("pc-1", PERSON)
    turn()
    registry.undrain("pc-1", PERSON)
    turn(30)
    assert the(operation).outcome == "cancelled"
    assert (Node.objects.get(pk="pc-1").draining, unfinished().count()) == (False, 0)


def test_it_cannot_be_asked_for_while_it_is_being_ended(agent, finish) -> None:
    running(finish, "one")
    cancellation.request(evacuation.request("pc-1", PERSON).pk, PERSON)
    with pytest.raises(Conflict):
        evacuation.request("pc-1", PERSON)


def test_models_that_someone_moves_or_unplaces_meanwhile_count_as_off(agent, finish, turn) -> None:
    Node.objects.filter(pk="pc-2").update(draining=True)
    running(finish, "one")
    operation = evacuation.request("pc-1", PERSON)
    turn(2)
    Node.objects.filter(pk="pc-2").update(draining=False)
    moves.request("one", "pc-2", (), PERSON)
    turn(20)
    assert the(operation).outcome == "succeeded"


def test_models_go_to_the_node_with_the_fewest(agent, finish, turn) -> None:
    placed("heavy", "pc-2")
    node("pc-3")
    running(finish, "one")
    evacuation.request("pc-1", PERSON)
    turn(20)
    assert where()["one"] == "pc-3"


def test_a_revoked_node_ends_it(agent, finish, turn) -> None:
    running(finish, "one")
    operation = evacuation.request("pc-1", PERSON)
    Node.objects.filter(pk="pc-1").update(lifecycle="revoked")
    turn(3)
    assert (the(operation).outcome, operation.error["code"]) == ("failed", "node_revoked")


@pytest.mark.parametrize(
    ("columns", "error", "code"),
    [({"lifecycle": "revoked"}, NodeRevoked, "node_revoked"), ({"lifecycle": "pending"}, Conflict, "invalid_state")],
)
def test_a_node_that_is_no_member_is_refused(columns, error, code) -> None:
    Node.objects.filter(pk="pc-1").update(**columns)
    with pytest.raises(error) as refused:
        evacuation.request("pc-1", PERSON)
    assert refused.value.code == code
    assert not Operation.objects.exists()


def test_a_fenced_master_evacuates_nothing(agent, finish, turn) -> None:
    authority.ensure()
    running(finish, "one")
    operation = evacuation.request("pc-1", PERSON)
    MasterIdentity.objects.update(fenced_reason="Another master is obeyed.")
    turn(3)
    assert not Operation.objects.filter(kind="move").exists()
    with pytest.raises(MirbadError):
        evacuation.request("pc-2", PERSON)
    MasterIdentity.objects.update(fenced_reason="")
    turn(20)
    assert the(operation).outcome == "succeeded"
