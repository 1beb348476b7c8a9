"""Operators' changes to nodes."""

import pytest

from agent.common import keys
from agent.identity import in_groups
from audit.models import AuditLine
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from nodes import fencing, registry
from nodes.enrollment import tokens
from nodes.errors import MasterFenced, NodeRevoked, PinChanged
from nodes.models import Gpu, JoinToken, Node, NodePin, RevokedKey
from tests.nodes.parts import OPERATOR, approved, enrolled, open_tokens, pin_of

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("master")]

DIGEST = "sha256:" + "a" * 64


def actions() -> list[tuple[str, str]]:
    return list(AuditLine.objects.order_by("id").values_list("action", "result"))


def test_approving_pins_exactly_the_key_that_was_seen():
    machine = enrolled("pc-1")
    node = registry.approve("pc-1", machine.spki, OPERATOR)
    assert node.lifecycle == "approved"
    assert node.approved_at is not None
    assert pin_of("pc-1") == machine.spki
    assert pin_of("pc-1", NodePin.PENDING) is None
    line = AuditLine.objects.get(action="node.approve")
    assert machine.spki in line.detail
    assert line.actor == OPERATOR.name


def test_the_fingerprint_may_come_as_people_read_it():
    machine = enrolled("pc-1")
    assert registry.approve("pc-1", in_groups(machine.spki).upper(), OPERATOR).lifecycle == "approved"


def test_a_key_that_changed_since_the_operator_looked_is_not_approved():
    machine = enrolled("pc-1")
    with pytest.raises(PinChanged, match="another key") as caught:
        registry.approve("pc-1", "a" * 64, OPERATOR)
    assert (caught.value.http_status, caught.value.code) == (409, "invalid_state")
    assert caught.value.fields["spkiSha256"] == machine.spki
    assert machine.node.lifecycle == "pending"
    assert pin_of("pc-1") is None


@pytest.mark.parametrize("seen", ["", "abc", "z" * 63])
def test_an_approval_without_a_fingerprint_is_refused(seen):
    enrolled("pc-1")
    with pytest.raises(InvalidRequest, match="fingerprint"):
        registry.approve("pc-1", seen, OPERATOR)


def test_a_node_is_approved_once():
    machine = approved("pc-1")
    with pytest.raises(Conflict, match="already approved"):
        registry.approve("pc-1", machine.spki, OPERATOR)


def test_there_must_be_something_to_approve():
    with pytest.raises(NotFound):
        registry.approve("pc-1", "a" * 64, OPERATOR)
    Node.objects.create(id="pc-1", address="192.0.2.1")
    with pytest.raises(Conflict, match="has not enrolled"):
        registry.approve("pc-1", "a" * 64, OPERATOR)


def test_approving_expires_the_node_s_other_tokens_and_no_one_else_s():
    other = tokens.create("pc-1", actor=OPERATOR)
    foreign = tokens.create("pc-2", actor=OPERATOR)
    approved_one = enrolled("pc-1")
    registry.approve("pc-1", approved_one.spki, OPERATOR)
    assert open_tokens("pc-1") == []
    assert len(open_tokens("pc-2")) == 1
    assert JoinToken.objects.get(pk=other.token.split(".")[0]).used_at is None
    assert foreign.node_id == "pc-2"


def test_a_failed_approval_expires_nothing():
    tokens.create("pc-1", actor=OPERATOR)
    enrolled("pc-1")
    with pytest.raises(PinChanged):
        registry.approve("pc-1", "a" * 64, OPERATOR)
    assert len(open_tokens("pc-1")) == 1


def test_the_display_name_given_with_the_token_is_applied_at_the_approval(monkeypatch):
    from nodes.enrollment import join
    from tests.nodes.parts import PEER, request_for

    made = tokens.create("pc-1", actor=OPERATOR, display_name="Kitchen PC")
    key = keys.new_key()
    join.enroll(request_for(made.token, "pc-1", key), PEER)
    assert Node.objects.get().display_name == ""
    assert registry.approve("pc-1", keys.spki_of(key.public_key()), OPERATOR).name == "Kitchen PC"


def test_rejecting_deletes_request_key_and_tokens():
    enrolled("pc-1")
    registry.reject("pc-1", OPERATOR)
    assert not Node.objects.exists()
    assert not NodePin.objects.exists()
    assert not JoinToken.objects.exists()
    assert not RevokedKey.objects.exists()
    assert ("node.reject", "succeeded") in actions()


def test_an_approved_node_is_not_rejected():
    approved("pc-1")
    with pytest.raises(Conflict, match="Revoke"):
        registry.reject("pc-1", OPERATOR)
    with pytest.raises(NotFound):
        registry.reject("pc-9", OPERATOR)
    assert JoinToken.objects.exists()


def test_draining_is_a_flag_that_is_set_and_lifted_once_each():
    approved("pc-1")
    assert registry.drain("pc-1", OPERATOR).draining
    assert registry.drain("pc-1", OPERATOR).draining
    assert not registry.undrain("pc-1", OPERATOR).draining
    assert [action for action, _ in actions()][-2:] == ["node.drain", "node.undrain"]


def test_a_node_that_waits_cannot_be_drained():
    enrolled("pc-1")
    with pytest.raises(Conflict, match="waits for approval"):
        registry.drain("pc-1", OPERATOR)


def test_revoking_takes_keys_and_tokens_and_remembers_the_keys():
    machine = approved("pc-1")
    node = registry.revoke("pc-1", OPERATOR)
    assert node.lifecycle == "revoked"
    assert not NodePin.objects.exists()
    assert RevokedKey.objects.get().spki_sha256 == machine.spki
    for work in (registry.drain, registry.undrain, registry.reject, registry.revoke):
        with pytest.raises(NodeRevoked):
            work("pc-1", OPERATOR)
    with pytest.raises(NodeRevoked):
        registry.approve("pc-1", machine.spki, OPERATOR)


def test_an_update_changes_what_it_names_and_nothing_else():
    approved("pc-1", address="192.0.2.4")
    node = registry.update("pc-1", {"display_name": " Kitchen ", "labels": {"room": "kitchen"}}, OPERATOR)
    assert (node.display_name, node.labels, node.address) == ("Kitchen", {"room": "kitchen"}, "192.0.2.4")
    node = registry.update("pc-1", {"memoryReserveBytes": 4 * 2**30, "maxConcurrentStarts": 2}, OPERATOR)
    assert (node.display_name, node.memory_reserve_bytes, node.max_concurrent_starts) == ("Kitchen", 4 * 2**30, 2)
    node = registry.update("pc-1", {"memory_reserve_bytes": None, "default_image_digest": DIGEST}, OPERATOR)
    assert (node.memory_reserve_bytes, node.default_image_digest) == (None, DIGEST)
    details = AuditLine.objects.filter(action="node.update").order_by("id").values_list("detail", flat=True)
    assert list(details) == [
        "display_name, labels",
        "max_concurrent_starts, memory_reserve_bytes",
        "default_image_digest, memory_reserve_bytes",
    ]


def test_default_images_go_by_the_names_of_their_engines():
    approved("pc-1")
    patch = {"defaultVllmImage": "a/vllm", "defaultVllmImageDigest": DIGEST, "defaultLlamaImage": "a/llama:1"}
    node = registry.update("pc-1", patch, OPERATOR)
    assert (node.default_image, node.default_image_digest) == ("a/vllm", DIGEST)
    assert (node.default_llama_image, node.default_llama_image_digest) == ("a/llama:1", "")
    node = registry.update("pc-1", {"defaultVllmImage": ""}, OPERATOR)
    assert (node.default_image, node.default_llama_image) == ("", "a/llama:1")


def test_an_update_that_changes_nothing_leaves_no_line():
    machine = approved("pc-1")
    registry.update("pc-1", {"port": machine.node.port}, OPERATOR)
    registry.update("pc-1", {}, OPERATOR)
    assert not AuditLine.objects.filter(action="node.update").exists()


@pytest.mark.parametrize(
    "patch",
    [
        {"lifecycle": "approved"},
        {"uid": "x"},
        {"port": 0},
        {"port": 70000},
        {"display_name": "x" * 101},
        {"display_name": "a\x00"},
        {"display_name": None},
        {"address": ""},
        {"address": "127.0.0.1"},
        {"address": "https://x"},
        {"labels": {"": "x"}},
        {"labels": {"a": "x" * 256}},
        {"labels": {str(n): "" for n in range(65)}},
        {"memory_reserve_bytes": -1},
        {"memory_reserve_bytes": 2**63},
        {"max_concurrent_starts": 0},
        {"default_image_digest": "sha256:abc"},
        {"default_image": "a b"},
        {"defaultVllmImage": "-x"},
        {"default_llama_image": "engine@latest"},
        {"defaultLlamaImageDigest": "latest"},
        {"gpu_reserves": {"GPU-unknown": 1}},
    ],
)
def test_a_setting_that_breaks_a_rule_is_refused_with_its_name(patch):
    before = approved("pc-1").node
    with pytest.raises(InvalidRequest) as caught:
        registry.update("pc-1", patch, OPERATOR)
    assert caught.value.problems
    assert vars(before)["port"] == Node.objects.get().port


def test_reserves_are_set_per_gpu():
    machine = approved("pc-1")
    Gpu.objects.create(node=machine.node, uuid="GPU-1")
    Gpu.objects.create(node=machine.node, uuid="GPU-2", reserve_bytes=5)
    registry.update("pc-1", {"gpu_reserves": {"GPU-1": 2**30, "GPU-2": None}}, OPERATOR)
    assert list(Gpu.objects.order_by("uuid").values_list("reserve_bytes", flat=True)) == [2**30, None]


def test_an_update_needs_a_node():
    with pytest.raises(NotFound):
        registry.update("pc-1", {"display_name": "x"}, OPERATOR)


def test_a_fenced_master_changes_nothing():
    machine = approved("pc-1")
    waiting = enrolled("pc-2")
    fencing.fence("Another master commands.")
    for work in (
        lambda: registry.approve("pc-2", waiting.spki, OPERATOR),
        lambda: registry.reject("pc-2", OPERATOR),
        lambda: registry.drain("pc-1", OPERATOR),
        lambda: registry.update("pc-1", {"port": 9000}, OPERATOR),
    ):
        with pytest.raises(MasterFenced):
            work()
    assert machine.node.lifecycle == "approved"
    assert waiting.node.lifecycle == "pending"


def test_a_fenced_master_revokes_since_no_node_is_called_for_that():
    machine = approved("pc-1")
    fencing.fence("Another master commands.")
    registry.revoke("pc-1", OPERATOR)
    assert machine.node.lifecycle == "revoked"
    assert list(RevokedKey.objects.values_list("spki_sha256", flat=True)) == [machine.spki]
    assert fencing.is_fenced()


def test_the_masters_own_machine_is_found_on_its_port_even_by_a_fenced_master():
    approved("own-1")
    Node.objects.filter(pk="own-1").update(is_bootstrap=True, port=9443)
    approved("pc-1")
    fencing.fence("another master commands")
    assert registry.follow_port("own-1", 9555, OPERATOR)
    assert not registry.follow_port("own-1", 9555, OPERATOR), "it is there already"
    assert not registry.follow_port("pc-1", 9555, OPERATOR), "another machine says itself where it is"
    assert dict(Node.objects.values_list("pk", "port")) == {"own-1": 9555, "pc-1": 9443}
    assert actions()[-1] == ("node.update", "succeeded")
