"""Nodes that lie about whom they obey, alone and together, while a master takes over or continues."""

import contextlib

import pytest

from agent.wire.fence import MAX_EPOCH, Claim
from agent.wire.instances import InstanceView, LaunchSpec
from jobs.requests import identity, takeover
from mirbad.kernel.ids import new_operation_id
from nodes import fencing
from nodes.errors import NodeIncompatible, NodePendingTakeover
from nodes.link import client, health
from nodes.models import Node
from tests.agent.core.conftest import launch_spec
from tests.nodes.parts import OPERATOR
from tests.trust.machines import Lie
from tests.trust.parts import copy, run

pytestmark = [pytest.mark.app, pytest.mark.django_db]

SPEC = LaunchSpec.model_validate(launch_spec())
LIES = {
    "a claim nobody can hold": Lie({"epoch": 2**63 - 1, "instanceId": "nobody-else"}, "stale_master"),
    "the highest claim of all": Lie({"epoch": MAX_EPOCH, "instanceId": "nobody-else"}, "competing_master"),
    "a claim that could be": Lie({"epoch": 90, "instanceId": "nobody-else"}, "stale_master"),
    "a report alone": Lie({"epoch": 2**62, "instanceId": "nobody-else"}),
    "no claim at all": Lie(None, "stale_master"),
    "a yes that is none": Lie({"epoch": 2**63, "instanceId": "nobody-else"}, "", nods=True),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_node_that_lies_neither_fences_the_master_nor_stops_a_takeover(table, lie):
    table.machines["c"].lie = lie
    for _ in range(3):
        with contextlib.suppress(NodePendingTakeover, NodeIncompatible):
            health.connect("c")
        health.connect("a")
    assert not fencing.is_fenced()
    copy(table)
    for times in range(1, 4):
        done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
        assert done.outcome == "succeeded", done.error
        assert [node_id for node_id in done.result["claimed"] if node_id != "c"] == ["a", "b"]
        assert {table.machines[node_id].held for node_id in "ab"} == {fencing.present()}
        assert fencing.present().epoch < 100 + times
        assert not fencing.is_fenced()


def test_a_node_that_takes_a_continuation_back_ends_it_with_its_own_reason(table):
    table.machines["c"].lie = Lie({"epoch": 9, "instanceId": "nobody-else"}, "stale_master")
    with pytest.raises(NodePendingTakeover):
        health.connect("c")
    node = Node.objects.get(pk="c")
    assert (node.takeover_id, node.held_epoch) == ("", 9)
    table.machines["c"].lie = Lie({"epoch": 9, "instanceId": "nobody-else"}, "")
    operation = takeover.resume("c", "", 9, "c", OPERATOR)
    for _ in range(2):
        table.step(operation.pk)
    table.machines["c"].lie = Lie({"epoch": 99, "instanceId": "nobody-else"}, "stale_master")
    done = run(table, operation)
    assert (done.outcome, done.error["code"]) == ("failed", "node_pending_takeover")
    assert not fencing.is_fenced()
    health.connect("a")
    assert table.machines["a"].held == fencing.present()


def test_nodes_that_lie_together_are_revoked_while_they_fence_the_master(table):
    for node_id in "bc":
        table.machines[node_id].lie = Lie({"epoch": 9, "instanceId": "nobody-else"}, "stale_master")
        with pytest.raises(NodePendingTakeover):
            health.connect(node_id)
    assert fencing.is_fenced()
    for node_id in "bc":
        assert run(table, identity.revoke(node_id, node_id, OPERATOR)).outcome == "succeeded"
    assert fencing.is_fenced()
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert (done.outcome, done.result["claimed"]) == ("succeeded", ["a"])
    assert not fencing.is_fenced()


def command(node_id):
    """Give the node an order under this master's claim."""
    client.call(node_id, "PUT", "instances/x", SPEC, answer=InstanceView, operation_id=new_operation_id())


def raise_epoch(table, times):
    """Have the liar raise the epoch of the others by as much as one report may, `times` times."""
    for _ in range(times):
        above = fencing.present().epoch + fencing.EPOCH_REACH
        table.machines["c"].lie = Lie({"epoch": above, "instanceId": "nobody-else"}, "stale_master")
        assert run(table, takeover.request(takeover.PHRASE, OPERATOR)).result["epoch"] == above + 1


@pytest.mark.parametrize("silent", ["", "c"])
def test_a_fleet_far_above_an_old_backup_fences_its_master_and_obeys_a_takeover(table, silent):
    backup = table.dump()
    raise_epoch(table, 2)
    far = fencing.present().epoch
    table.restore(backup, over="m0")
    if silent:
        table.machines[silent].lie = None
        table.here().cut.add(silent)
    assert fencing.reach(fencing.present()) < far
    with pytest.raises(NodeIncompatible, match="restored from an old backup"):
        command("a")
    assert not fencing.is_fenced()
    with pytest.raises(NodePendingTakeover):
        command("b")
    assert fencing.fenced_reason().startswith("Nodes a, b obey another master")
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert (done.outcome, [name for name in done.result["claimed"] if name != "c"]) == ("succeeded", ["a", "b"])
    assert done.result["epoch"] == far + 1
    for node_id in "ab":
        health.connect(node_id)
        command(node_id)


def test_a_takeover_finds_by_itself_that_two_nodes_are_far_above(table):
    backup = table.dump()
    raise_epoch(table, 2)
    far = fencing.present().epoch
    table.restore(backup, over="m0")
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert (done.result["epoch"], set("ab") <= set(done.result["claimed"])) == (far + 1, True)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({}, 2**24 + 1),
        ({"a": 2**24 + 1, "b": 2**24 + 1}, 2**24 + 1),
        ({"c": 2**50}, 2**24 + 1),
        ({"a": 2**30, "c": 2**50}, 2**30),
        ({"a": 2**30, "b": 2**40, "c": 2**50}, 2**40),
        ({"a": MAX_EPOCH, "b": MAX_EPOCH}, 2**52),
    ],
)
def test_an_epoch_far_above_is_believed_of_two_nodes_apart(table, reports, expected):
    Node.objects.update(held_epoch=None)
    for node_id, epoch in reports.items():
        Node.objects.filter(pk=node_id).update(held_epoch=epoch)
    ours = Claim(epoch=1, instance_id="12345678")
    assert fencing.reach(ours) == expected
    # Two of one address are one voice, and so are two of one machine; others have none.
    for same in ({"address": "192.0.2.1"}, {"machine_id_hash": "f" * 64}, {"lifecycle": "pending"}):
        before = list(Node.objects.values())
        Node.objects.update(**same)
        assert fencing.reach(ours) == 2**24 + 1
        Node.objects.all().delete()
        Node.objects.bulk_create([Node(**row) for row in before])
