"""Claims that one node reports are about that node: they never stop the master."""

import json

import pytest

from agent.wire.capability import AgentInfo
from agent.wire.errors import AgentCode, AgentErrorBody
from agent.wire.fence import MAX_EPOCH, Claim, FenceView, MalformedClaim, well_formed
from agent.wire.status import HostStatus, NodeStatus
from mirbad.kernel.errors import Unavailable
from nodes import fencing, queries, reachability
from nodes.errors import MasterFenced, NodeIncompatible, NodePendingTakeover
from nodes.link import client
from nodes.link.transport import Endpoint
from nodes.models import MasterIdentity, Node
from nodes.pki import authority

OURS = Claim(epoch=3, instance_id="ours" * 4)
OTHER = "other-master"
app = [pytest.mark.app, pytest.mark.django_db]

BEYOND = (MAX_EPOCH + 1, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64, 10**40, 10**4000)
NO_CLAIM = (0, -1, -(2**63), 1.5, 1e300, None, "x", [], {}, [3], {"epoch": 3})


@pytest.mark.unit
@pytest.mark.parametrize("epoch", [*BEYOND, *NO_CLAIM], ids=lambda epoch: str(epoch)[:12])
def test_a_report_with_a_claim_that_no_master_can_hold_is_read_and_its_claim_left_out(epoch):
    told = json.dumps({"held": {"epoch": epoch, "instanceId": OTHER}})
    view = FenceView.model_validate_json(told)
    assert isinstance(view.held, MalformedClaim)
    assert well_formed(view.held) is None
    assert len(view.held.shown_epoch) < 40
    assert view.to_wire() == {"held": None}
    for ours in (OURS, Claim(epoch=MAX_EPOCH, instance_id="ours" * 4)):
        assert "no master can hold" in fencing.disbelief(view.held, ours)
        assert "no master can hold" in fencing.disbelief_of_refusal(view.held, ours)


@pytest.mark.app
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("epoch", "instance", "believed", "refuses"),
    [
        (1, OTHER, True, False),
        (2, OTHER, True, False),
        (3, OURS.instance_id, True, False),
        (3, OTHER, True, True),
        (4, OTHER, True, True),
        (4, OURS.instance_id, True, True),
        (3 + fencing.EPOCH_REACH, OTHER, True, True),
        (4 + fencing.EPOCH_REACH, OTHER, False, False),
        (MAX_EPOCH, OTHER, False, False),
    ],
)
def test_a_refusal_counts_for_the_sake_of_a_claim_that_would_be_obeyed_and_can_be_reached(
    epoch, instance, believed, refuses
):
    held = Claim(epoch=epoch, instance_id=instance)
    assert (fencing.disbelief(held, OURS) == "") is believed
    assert (fencing.disbelief_of_refusal(held, OURS) == "") is refuses
    assert fencing.disbelief(None, OURS) == ""
    assert "without obeying another master" in fencing.disbelief_of_refusal(None, OURS)


@pytest.fixture
def master(db):
    authority.ensure()
    MasterIdentity.objects.update(epoch=OURS.epoch, instance_id=OURS.instance_id)


def machine(name: str, number: int, **columns) -> Node:
    values = {"address": f"192.0.2.{number}", "machine_id_hash": f"{number:064x}", **columns}
    return Node.objects.create(id=name, lifecycle="approved", reachability="online", **values)


def refuse(node_id: str, held: object, code: AgentCode = AgentCode.STALE_MASTER) -> None:
    """Have the node refuse an order, through the code that every call passes."""
    body = AgentErrorBody(code=code, detail="No.", fields={} if held is ... else {"held": held})
    prepared = client._AgentCall(
        Endpoint(node_id, "192.0.2.1", 9443, node_id, None), "PUT", "fence", {}, None, 1.0, OURS
    )
    client._conclude(prepared, client._AgentResponse(409, body.model_dump_json(by_alias=True).encode()), FenceView)


def another(epoch: int = 7, name: str = OTHER) -> dict[str, object]:
    return {"epoch": epoch, "instanceId": name}


class TestFleet:
    """Refusals of nodes, as the master takes them."""

    pytestmark = [*app, pytest.mark.usefixtures("master")]

    def test_one_node_is_held_and_asked_about_and_the_master_goes_on(self):
        machine("a", 1), machine("b", 2)
        for _ in range(5):
            with pytest.raises(NodePendingTakeover, match="revoke the node"):
                refuse("a", another())
        assert not fencing.is_fenced()
        assert fencing.claim() == OURS
        node = queries.get("a")
        assert queries.shown_state(node, ()).name == "PendingTakeover"
        assert "obeys epoch 7 of another one" in node.reachability_reason
        assert [one.pk for one in queries.waiting_for_continuation()] == ["a"]
        assert queries.get("b").reachability == "online"

    @pytest.mark.parametrize("code", [AgentCode.STALE_MASTER, AgentCode.COMPETING_MASTER])
    def test_two_machines_fence_the_master_for_every_process(self, code):
        machine("a", 1), machine("b", 2), machine("c", 3)
        for node_id in ("a", "b"):
            with pytest.raises(NodePendingTakeover):
                refuse(node_id, another(), code)
        assert fencing.fenced_reason() == "Nodes a, b obey another master. Stop the other master, then take over."
        with pytest.raises(MasterFenced):
            refuse("c", another())

    def test_nodes_of_one_machine_or_address_are_one_voice(self):
        machine("a", 1), machine("b", 2, machine_id_hash=f"{1:064x}"), machine("c", 3, address="192.0.2.1")
        for node_id in ("a", "b", "a", "c"):
            with pytest.raises(NodePendingTakeover):
                refuse(node_id, another())
            if node_id != "c":
                assert not fencing.is_fenced(), node_id
        # b and c share neither machine nor address.
        assert fencing.is_fenced()

    def test_the_node_of_the_masters_own_machine_fences_alone(self):
        machine("own", 1, is_bootstrap=True), machine("b", 2)
        with pytest.raises(NodePendingTakeover):
            refuse("own", another())
        assert fencing.fenced_reason().startswith("Node own obeys another master.")

    @pytest.mark.parametrize(
        "held",
        [
            ..., None, 7, "claim", [], {}, another(0), another(-5), another(2), another(3, OURS.instance_id),
            another(2**53), another(2**63 - 1), another(2**63), another(10**30), another(9, "short"),
            another(9, "x" * 65), {"epoch": 9}, {"epoch": 2**63 - 1}, {"instanceId": OTHER}, another("9x"),
        ],
        ids=lambda held: str(held)[:30],
    )  # fmt: skip
    def test_a_refusal_that_cannot_be_true_is_named_and_counts_for_nothing(self, held):
        machine("own", 1, is_bootstrap=True), machine("b", 2), machine("c", 3)
        for node_id in ("own", "b", "c"):
            with pytest.raises(NodeIncompatible) as caught:
                refuse(node_id, held)
            node = queries.get(node_id)
            assert (node.reachability, node.refused_instance) == ("incompatible", "")
            assert node.reachability_reason in caught.value.detail
            assert "revoke it" in node.reachability_reason
        assert not fencing.is_fenced()

    @pytest.mark.parametrize("epoch", [4 + fencing.EPOCH_REACH, MAX_EPOCH])
    def test_a_refusal_for_an_epoch_far_above_counts_for_nothing_until_another_machine_refuses_too(self, epoch):
        machine("own", 1, is_bootstrap=True), machine("b", 2, machine_id_hash=f"{1:064x}"), machine("c", 3)
        for node_id in ("own", "b", "own"):
            with pytest.raises(NodeIncompatible, match="far above"):
                refuse(node_id, another(epoch))
            assert not fencing.is_fenced()
        with pytest.raises((NodePendingTakeover, NodeIncompatible)):
            refuse("c", another(epoch))
        assert fencing.is_fenced()

    @pytest.mark.parametrize("lifecycle", ["revoked", "pending"])
    def test_a_node_that_is_not_approved_has_no_voice(self, lifecycle):
        machine("a", 1), machine("b", 2)
        with pytest.raises(NodePendingTakeover):
            refuse("a", another())
        Node.objects.filter(pk="a").update(lifecycle=lifecycle)
        with pytest.raises(NodePendingTakeover):
            refuse("b", another())
        assert not fencing.is_fenced()

    def test_a_refusal_of_a_former_claim_is_no_voice_against_the_present_one(self):
        machine("a", 1), machine("b", 2)
        with pytest.raises(NodePendingTakeover):
            refuse("a", another())
        fencing.advance(OURS, 8, "op-1")
        assert not fencing.fence_if_refused(fencing.present())
        with pytest.raises(MasterFenced):
            refuse("b", another())
        assert not fencing.is_fenced()

    @pytest.mark.parametrize("ends", [lambda: reachability.accepted("a"), lambda: reachability.claimed("a", OURS)])
    def test_a_node_that_obeys_again_takes_its_refusal_back(self, ends):
        machine("a", 1), machine("b", 2)
        with pytest.raises(NodePendingTakeover):
            refuse("a", another())
        ends()
        with pytest.raises(NodePendingTakeover):
            refuse("b", another())
        assert not fencing.is_fenced()

    @pytest.mark.parametrize("epoch", BEYOND[:7])
    def test_a_status_with_an_impossible_claim_degrades_the_node_alone(self, epoch):
        machine("a", 1)
        told = {"bootId": "b", "seq": 1, "capabilitiesSeq": 1, "time": "", "heldClaim": another(epoch), "host": {}}
        status = NodeStatus.model_validate_json(json.dumps(told))
        assert status.host == HostStatus()
        assert reachability.observe_status("a", status)
        node = queries.get("a")
        assert (node.held_epoch, node.held_instance) == (None, "")
        shown = queries.shown_state(node, ())
        assert shown.name == "Degraded"
        assert "no master can hold" in shown.reasons[0]

    @pytest.mark.parametrize("epoch", [0, -1, MAX_EPOCH + 1, 2**62, 2**63 - 1])
    def test_an_epoch_in_the_database_that_no_node_accepts_is_refused_with_words(self, epoch):
        MasterIdentity.objects.update(epoch=epoch)
        for ask in (fencing.claim, fencing.present):
            with pytest.raises(Unavailable, match=f"epoch {epoch}"):
                ask()


@pytest.mark.unit
def test_info_with_an_impossible_claim_is_read():
    told = {
        "nodeId": "a", "nodeUid": "u", "agentVersion": "1", "protocolVersions": [1], "bootId": "b",
        "heldClaim": another(2**63 - 1), "machineIdHash": "", "certNotAfter": "", "spkiSha256": "",
        "trustBundleHash": "",
    }  # fmt: skip
    info = AgentInfo.model_validate_json(json.dumps(told))
    assert fencing.disbelief(info.held_claim, OURS).startswith("The agent reports a claim that no master can hold")
