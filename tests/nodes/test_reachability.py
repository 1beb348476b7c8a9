"""Observed states of nodes: reachability, capabilities, conditions, shown states."""

from datetime import timedelta

import pytest
import time_machine

from agent.wire.capability import AgentInfo, Capabilities, GpuCapability, MemoryModel
from agent.wire.fence import Claim
from agent.wire.status import GpuStatus, HostStatus, NodeStatus
from mirbad.kernel import clock
from mirbad.kernel.errors import Conflict, NotFound
from nodes import conditions, queries, reachability, registry
from nodes.conditions import Condition
from nodes.errors import NodeDraining, NodeIncompatible, NodeOffline, NodePendingTakeover, NodeRevoked
from nodes.models import Gpu, Node
from nodes.states import FENCED, INCOMPATIBLE
from tests.nodes.parts import OPERATOR, approved, enrolled

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("master")]

GIB = 2**30


def status(boot="boot-1", seq=1, **also) -> NodeStatus:
    return NodeStatus(
        boot_id=boot,
        seq=seq,
        capabilities_seq=1,
        time="2026-01-01T00:00:00Z",
        held_claim=also.pop("held_claim", None),
        host=also.pop("host", HostStatus(memory_total_bytes=8 * GIB)),
        **also,
    )


def caps(*gpus, **also) -> Capabilities:
    return Capabilities(
        os="Debian 12",
        arch="x86_64",
        hostname="pc",
        cpu_count=8,
        memory_bytes=32 * GIB,
        memory_model=MemoryModel.DISCRETE,
        memory_model_reason="1 GPU reported",
        gpus=gpus,
        runtimes=also.pop("runtimes", ()),
        features=also.pop("features", ()),
        folders=(),
        models_root="/srv",
        allow_tag_pulls=False,
        **also,
    )


def info(machine, **also) -> AgentInfo:
    values = {
        "node_id": machine.node_id,
        "node_uid": str(machine.node.uid),
        "agent_version": "1.2.3",
        "protocol_versions": (1,),
        "boot_id": "boot-1",
        "held_claim": None,
        "machine_id_hash": "",
        "cert_not_after": (clock.now() + timedelta(days=90)).isoformat(),
        "spki_sha256": machine.spki,
        "trust_bundle_hash": "",
    }
    return AgentInfo(**(values | also))


def state(node_id="pc-1"):
    node = queries.get(node_id)
    return queries.shown_state(node, list(node.conditions.all()))


def test_an_approved_node_reads_offline_until_it_was_reached_and_online_then():
    machine = approved()
    assert state().name == "Offline"
    assert state().reasons
    assert reachability.observe_contact("pc-1", info(machine))
    assert not reachability.observe_contact("pc-1", info(machine))
    assert state() == queries.ShownNodeState("Online", False, ())
    assert state().serving


def test_a_node_that_waits_is_never_shown_as_online():
    machine = enrolled()
    reachability.observe_contact("pc-1", info(machine))
    assert state().name == "PendingApproval"
    assert machine.node.reachability == "unknown"


def test_a_node_that_waits_and_cannot_be_reached_says_so_and_recovers():
    machine = enrolled()
    assert reachability.lost("pc-1", "Nobody answers at 192.0.2.10.")
    assert state().reasons == ("Nobody answers at 192.0.2.10.",)
    assert reachability.observe_contact("pc-1", info(machine))
    assert state().reasons == ()


def test_it_reads_offline_after_fifteen_seconds_without_contact():
    machine = approved()
    start = clock.now()
    with time_machine.travel(start, tick=False) as travel:
        reachability.observe_contact("pc-1", info(machine))
        travel.shift(14)
        assert not reachability.lost("pc-1", "no answer")
        travel.shift(2)
        assert reachability.lost("pc-1", "no answer")
        assert not reachability.lost("pc-1", "still no answer")
    assert state() == queries.ShownNodeState("Offline", False, ("still no answer",))


@pytest.mark.parametrize("back", [60, 3600, 86400])
def test_a_clock_that_was_set_back_does_not_keep_a_silent_node_online(back):
    machine = approved()
    with time_machine.travel(clock.now(), tick=False) as travel:
        reachability.observe_contact("pc-1", info(machine))
        reachability.accepted("pc-1")
        travel.shift(-back)
        assert reachability.lost("pc-1", "no answer")
    assert state().name == "Offline"


def test_a_refusal_says_more_than_silence_and_ends_with_a_fresh_acceptance():
    machine = approved()
    reachability.observe_contact("pc-1", info(machine))
    assert reachability.refused("pc-1", "fenced", "obeys another")
    Node.objects.update(last_seen_at=clock.now() - timedelta(minutes=5))
    assert not reachability.lost("pc-1", "silent")
    assert not reachability.observe_contact("pc-1", info(machine))
    assert state() == queries.ShownNodeState("PendingTakeover", False, ("obeys another",))
    assert reachability.accepted("pc-1")
    assert state().name == "Online"
    assert reachability.refused("pc-1", "incompatible", "speaks protocol 9")
    assert state() == queries.ShownNodeState("Incompatible", False, ("speaks protocol 9",))
    with pytest.raises(ValueError, match="not a kind"):
        reachability.refused("pc-1", "offline", "")


def test_only_a_newer_status_is_kept():
    approved()
    assert reachability.observe_status("pc-1", status(seq=5))
    assert not reachability.observe_status("pc-1", status(seq=5))
    assert not reachability.observe_status("pc-1", status(seq=4, host=HostStatus(memory_total_bytes=1)))
    assert Node.objects.get().host["memoryTotalBytes"] == 8 * GIB
    assert reachability.observe_status("pc-1", status(seq=6))
    assert reachability.observe_status("pc-1", status(boot="boot-2", seq=1))
    node = Node.objects.get()
    assert (node.boot_id, node.seq) == ("boot-2", 1)


def test_a_status_tells_host_gpus_warnings_and_the_claim():
    approved()
    reachability.observe_capabilities("pc-1", caps(GpuCapability(uuid="GPU-1", index=0, name="RTX")), 7)
    told = status(
        gpus=(GpuStatus(uuid="GPU-1", used_bytes=GIB), GpuStatus(uuid="GPU-9", used_bytes=1)),
        warnings=("the models root is not writable",),
        held_claim=Claim(epoch=3, instance_id="0123456789"),
    )
    assert reachability.observe_status("pc-1", told)
    node = Node.objects.get()
    assert (node.held_epoch, node.held_instance) == (3, "0123456789")
    assert node.capabilities_seq == 7
    assert list(Gpu.objects.values_list("uuid", flat=True)) == ["GPU-1"]
    assert Gpu.objects.get().seen["usedBytes"] == GIB
    assert Gpu.objects.get().seen["totalBytes"] is None
    reachability.accepted("pc-1")
    assert state() == queries.ShownNodeState("Degraded", False, ("the models root is not writable",))


WARNED = {"warnings": ("the fan is loud", "the disk is slow")}


@pytest.mark.parametrize(
    ("reported", "codes"),
    [
        ({**WARNED, "warning_codes": ("fan_loud", "disk_slow")}, ["fan_loud", "disk_slow"]),
        (WARNED, ["node_warning", "node_warning"]),  # an agent without codes
        ({**WARNED, "warning_codes": ("fan_loud",)}, ["fan_loud", "node_warning"]),
        ({**WARNED, "warning_codes": ("", "disk_slow", "more")}, ["node_warning", "disk_slow"]),
        ({**WARNED, "warning_codes": ("x" * 99, "disk_slow")}, ["x" * 40, "disk_slow"]),
    ],
)
def test_each_reason_of_a_node_has_its_code_in_the_api_and_on_pages(viewer, reported, codes):
    approved()
    reachability.observe_status("pc-1", status(**reported))
    reachability.accepted("pc-1")
    conditions.replace("pc-1", "clock", [Condition("clock_differs", "The clock is wrong.")])
    sentences = ["The clock is wrong.", "the fan is loud", "the disk is slow"]
    rows = [
        viewer.client.get("/api/nodes/pc-1").json(),
        viewer.client.get("/api/nodes").json()["items"][0],
        viewer.client.get("/api/status").json()["nodes"][0],
    ]
    for row in rows:
        assert (row["state"], row["reasons"]) == ("Degraded", sentences)
        assert row["reasonCodes"] == ["clock_differs", *codes]
    page = viewer.client.get("/nodes/pc-1").content.decode()
    assert all(f">{code}<" in page for code in ("clock_differs", *codes))


def test_warnings_that_were_stored_before_codes_are_still_shown():
    approved()
    reachability.accepted("pc-1")
    Node.objects.update(warnings=["the disk is full"])
    assert state().reasons == ("the disk is full",)
    assert state().reason_codes == ("node_warning",)


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (lambda: None, "node_not_reached"),
        (lambda: reachability.lost("pc-1", "Connection refused."), "node_offline"),
        (lambda: reachability.refused("pc-1", INCOMPATIBLE, "No protocol in common."), "node_incompatible"),
        (lambda: reachability.refused("pc-1", FENCED, "It obeys another master."), "node_pending_takeover"),
    ],
)
def test_states_without_conditions_have_codes_too(happens, code):
    approved()
    happens()
    assert state().reason_codes == (code,)


def test_a_gpu_that_is_gone_keeps_its_row_and_comes_back():
    machine = approved()
    both = (GpuCapability(uuid="GPU-1", index=0, memory_bytes=8 * GIB), GpuCapability(uuid="GPU-2", index=1))
    reachability.observe_capabilities("pc-1", caps(*both), 1)
    registry.update("pc-1", {"gpu_reserves": {"GPU-1": GIB}}, OPERATOR)
    reachability.observe_capabilities("pc-1", caps(both[1]), 2)
    gone = Gpu.objects.get(uuid="GPU-1")
    assert (gone.present, gone.reserve_bytes, gone.memory_bytes) == (False, GIB, 8 * GIB)
    reachability.observe_capabilities("pc-1", caps(GpuCapability(uuid="GPU-1", index=3), both[1]), 3)
    back = Gpu.objects.get(uuid="GPU-1")
    assert (back.present, back.index, back.memory_bytes, back.reserve_bytes) == (True, 3, 8 * GIB, GIB)
    assert queries.capabilities(machine.node).hostname == "pc"


def test_problems_that_the_node_reports_are_reasons():
    approved()
    reachability.accepted("pc-1")
    broken = caps(GpuCapability(uuid="GPU-1", problem="lost"), gpu_problem="nvidia-smi failed")
    reachability.observe_capabilities("pc-1", broken, 1)
    assert set(state().reasons) == {"nvidia-smi failed", "GPU GPU-1: lost"}
    reachability.observe_capabilities("pc-1", caps(), 2)
    assert state().name == "Online"


def test_a_certificate_that_ends_soon_is_a_reason():
    machine = approved()
    reachability.accepted("pc-1")
    reachability.observe_info("pc-1", info(machine, cert_not_after=(clock.now() + timedelta(days=9)).isoformat()), 1)
    assert state().name == "Degraded"
    assert "expires" in state().reasons[0]
    reachability.observe_info("pc-1", info(machine), 1)
    assert state().name == "Online"
    reachability.observe_info("pc-1", info(machine, cert_not_after="soon"), None)
    node = Node.objects.get()
    assert (node.cert_not_after, node.protocol, node.agent_version) == (None, None, "1.2.3")


def test_each_source_owns_its_conditions():
    approved()
    assert conditions.replace("pc-1", "a", [Condition("x", "first"), Condition("x", "second", "subject")])
    assert conditions.replace("pc-1", "b", [Condition("x", "third")])
    since = dict(Node.objects.get().conditions.values_list("detail", "since"))
    assert not conditions.replace("pc-1", "a", [Condition("x", "first"), Condition("x", "second", "subject")])
    assert conditions.replace("pc-1", "a", [Condition("x", "first, changed")])
    rows = dict(Node.objects.get().conditions.values_list("detail", "since"))
    assert set(rows) == {"first, changed", "third"}
    assert rows["first, changed"] == since["first"]
    assert conditions.replace("pc-1", "a", [])
    assert Node.objects.get().conditions.count() == 1


def test_serving_and_placing_refuse_each_state_by_name():
    machine = approved()
    with pytest.raises(NotFound):
        queries.require_serving("pc-9")
    enrolled("pc-2")
    with pytest.raises(Conflict, match="Approve it first"):
        queries.require_serving("pc-2")
    with pytest.raises(NodeOffline):
        queries.require_serving("pc-1")
    reachability.refused("pc-1", "fenced", "")
    with pytest.raises(NodePendingTakeover):
        queries.require_serving("pc-1")
    reachability.refused("pc-1", "incompatible", "")
    with pytest.raises(NodeIncompatible):
        queries.require_serving("pc-1")
    reachability.accepted("pc-1")
    assert queries.require_placeable("pc-1").pk == "pc-1"
    registry.drain("pc-1", OPERATOR)
    assert queries.require_serving("pc-1").draining
    assert state() == queries.ShownNodeState("Online", True, ())
    with pytest.raises(NodeDraining):
        queries.require_placeable("pc-1")
    registry.revoke(machine.node_id, OPERATOR)
    with pytest.raises(NodeRevoked):
        queries.require_serving("pc-1")
    assert state().name == "Revoked"


def test_waiting_nodes_are_fleet_members_only_while_nobody_is_approved():
    enrolled("pc-1")
    assert {node.pk for node in queries.fleet_members()} == {"pc-1"}
    approved("pc-2")
    registry.revoke(approved("pc-3").node_id, OPERATOR)
    assert {node.pk for node in queries.fleet_members()} == {"pc-2"}


def test_lists_take_the_same_number_of_statements_for_one_node_and_for_many(django_assert_num_queries):
    for count in range(1, 4):
        approved(f"pc-{count}")
        reachability.observe_capabilities(f"pc-{count}", caps(GpuCapability(uuid=f"GPU-{count}")), 1)
        with django_assert_num_queries(4):
            shown = [queries.shown_state(node, node.conditions.all()) for node in queries.rows()]
        assert len(shown) == count


def test_capabilities_of_another_shape_are_unknown():
    machine = approved()
    assert queries.capabilities(machine.node) is None
    Node.objects.update(capabilities={"os": "?"})
    assert queries.capabilities(machine.node) is None


def test_forgetting_lets_a_new_state_folder_begin_again():
    approved()
    reachability.observe_status("pc-1", status(seq=900))
    reachability.forget("pc-1")
    assert reachability.observe_status("pc-1", status(seq=1))
