"""Nodes as JSON on ``/api``. A null value is not reported."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from mirbad.api import printing
from mirbad.api.serializers import CamelSerializer
from nodes import queries
from nodes.models import Gpu, Node, NodeCondition, NodePin
from nodes.pki import renewal
from nodes.states import LIFECYCLE, REACHABILITY

NODE_STATES = ("PendingApproval", "Online", "Degraded", "Offline", "Incompatible", "PendingTakeover", "Revoked")
MASTER_STATES = ("commanding", "fenced", "unknown")
_MOST_BYTES = 2**63 - 1
_DIGEST = r"^(sha256:[0-9a-f]{64})?$"


class GpuSerializer(CamelSerializer):
    """A GPU by its UUID; `seen` is its last status as the agent sent it."""

    uuid = serializers.CharField()
    index = serializers.IntegerField(allow_null=True)
    name = serializers.CharField()
    memory_bytes = serializers.IntegerField(allow_null=True)
    shares_host_memory = serializers.BooleanField(allow_null=True)
    reserve_bytes = serializers.IntegerField(allow_null=True)
    present = serializers.BooleanField()
    seen = serializers.DictField()


class NodeSerializer(CamelSerializer):
    """A node: its desired state, its observed state, and the state that a page shows.

    A list passes the `NodeParts` of its nodes as ``context["parts"]``; without it they are read from the node.
    """

    id = serializers.CharField()
    uid = serializers.UUIDField()
    display_name = serializers.CharField()
    address = serializers.CharField()
    port = serializers.IntegerField()
    lifecycle = serializers.ChoiceField(choices=LIFECYCLE.choices)
    draining = serializers.BooleanField()
    is_bootstrap = serializers.BooleanField()
    state = serializers.SerializerMethodField(method_name="state_of")
    reasons = serializers.SerializerMethodField(method_name="reasons_of")
    reason_codes = serializers.SerializerMethodField(method_name="reason_codes_of")
    reachability = serializers.ChoiceField(choices=REACHABILITY.choices)
    last_seen_at = serializers.DateTimeField(allow_null=True)
    labels = serializers.DictField(child=serializers.CharField())
    memory_reserve_bytes = serializers.IntegerField(allow_null=True)
    max_concurrent_starts = serializers.IntegerField(allow_null=True)
    default_vllm_image = serializers.CharField(source="default_image")
    default_vllm_image_digest = serializers.CharField(source="default_image_digest")
    default_llama_image = serializers.CharField()
    default_llama_image_digest = serializers.CharField()
    agent_version = serializers.CharField()
    protocol = serializers.IntegerField(allow_null=True)
    cert_not_after = serializers.DateTimeField(allow_null=True)
    spki_sha256 = serializers.SerializerMethodField(method_name="current_pin")
    pending_spki_sha256 = serializers.SerializerMethodField(method_name="pending_pin")
    next_spki_sha256 = serializers.SerializerMethodField(method_name="next_pin")
    renewal_at = serializers.SerializerMethodField(method_name="renewal_of")
    request_address = serializers.CharField()
    enrolled_at = serializers.DateTimeField(allow_null=True)
    approved_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    gpus = serializers.SerializerMethodField(method_name="gpus_of")
    host = serializers.DictField()

    @extend_schema_field(serializers.ChoiceField(choices=NODE_STATES))
    def state_of(self, node: Node) -> str:
        """Return the shown state."""
        return self._shown(node).name

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def reasons_of(self, node: Node) -> list[str]:
        """Return the reasons for the state, as sentences."""
        return list(self._shown(node).reasons)

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def reason_codes_of(self, node: Node) -> list[str]:
        """Return the code of each of the reasons."""
        return list(self._shown(node).reason_codes)

    @extend_schema_field(serializers.CharField(allow_null=True))
    def current_pin(self, node: Node) -> str | None:
        """Return the key that the master expects."""
        return self._pin(node, NodePin.CURRENT)

    @extend_schema_field(serializers.CharField(allow_null=True))
    def pending_pin(self, node: Node) -> str | None:
        """Return the key that waits for approval."""
        return self._pin(node, NodePin.PENDING)

    @extend_schema_field(serializers.CharField(allow_null=True))
    def next_pin(self, node: Node) -> str | None:
        """Return the key that is accepted beside the current one while a rotation is open."""
        return self._pin(node, NodePin.NEXT)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def renewal_of(self, node: Node) -> datetime | None:
        """Return the time of the certificate's automatic renewal."""
        pin = next((pin for pin in self._pins(node) if pin.slot == NodePin.CURRENT), None)
        return None if pin is None else renewal.renewal_at(pin)

    @extend_schema_field(GpuSerializer(many=True))
    def gpus_of(self, node: Node) -> list[dict[str, Any]]:
        """Return the node's GPUs."""
        parts = self._parts(node)
        gpus: Iterable[Gpu] = node.gpus.all() if parts is None else parts.gpus
        return [self._gpu(gpu) for gpu in gpus]

    @cached_property
    def _gpu(self) -> Callable[[Gpu], dict[str, Any]]:
        return printing.printer(GpuSerializer())

    def _shown(self, node: Node) -> queries.ShownNodeState:
        parts = self._parts(node)
        conditions: Iterable[NodeCondition] = node.conditions.all() if parts is None else parts.conditions
        return queries.shown_state(node, conditions)

    def _pin(self, node: Node, slot: str) -> str | None:
        return next((pin.spki_sha256 for pin in self._pins(node) if pin.slot == slot), None)

    def _pins(self, node: Node) -> Iterable[NodePin]:
        parts = self._parts(node)
        return node.pins.all() if parts is None else parts.pins

    def _parts(self, node: Node) -> queries.NodeParts | None:
        known = self.context.get("parts")
        return None if known is None else known[node.pk]


class NodeDetailSerializer(NodeSerializer):
    """A node with its own reports: from enrollment (`machine`) and since (`capabilities`)."""

    machine = serializers.DictField()
    capabilities = serializers.DictField()


class NodePatchSerializer(CamelSerializer):
    """Settings of a node; only members that are sent change. For documentation: `registry.update` does the checks."""

    display_name = serializers.CharField(max_length=100, allow_blank=True, required=False)
    address = serializers.CharField(max_length=255, required=False)
    port = serializers.IntegerField(min_value=1, max_value=65535, required=False)
    labels = serializers.DictField(child=serializers.CharField(max_length=255, allow_blank=True), required=False)
    memory_reserve_bytes = serializers.IntegerField(min_value=0, max_value=_MOST_BYTES, allow_null=True, required=False)
    max_concurrent_starts = serializers.IntegerField(min_value=1, max_value=1000, allow_null=True, required=False)
    default_vllm_image = serializers.CharField(max_length=255, allow_blank=True, required=False)
    default_vllm_image_digest = serializers.RegexField(_DIGEST, allow_blank=True, required=False)
    default_llama_image = serializers.CharField(max_length=255, allow_blank=True, required=False)
    default_llama_image_digest = serializers.RegexField(_DIGEST, allow_blank=True, required=False)
    gpu_reserves = serializers.DictField(
        child=serializers.IntegerField(min_value=0, max_value=_MOST_BYTES, allow_null=True), required=False
    )


class JoinInputSerializer(CamelSerializer):
    """Input of a join command. `rekey` re-pairs a node that has enrolled before."""

    node_id = serializers.CharField(max_length=40)
    display_name = serializers.CharField(max_length=100, allow_blank=True, default="")
    ttl_minutes = serializers.IntegerField(min_value=10, max_value=1440, allow_null=True, default=None)
    rekey = serializers.BooleanField(default=False)


class JoinCommandSerializer(CamelSerializer):
    """A join command: the only response that holds the token."""

    node_id = serializers.CharField()
    token = serializers.CharField()
    ca_hash = serializers.CharField()
    enroll_url = serializers.CharField()
    expires_at = serializers.DateTimeField()
    purpose = serializers.CharField()
    commands = serializers.DictField(child=serializers.CharField())
    agent_download = serializers.DictField(allow_null=True)


class WithdrawnSerializer(CamelSerializer):
    """The number of unused tokens that were revoked."""

    withdrawn = serializers.IntegerField()


class ApprovalSerializer(CamelSerializer):
    """The key fingerprint that was compared with the one that the machine printed."""

    expected_spki_sha256 = serializers.CharField(max_length=200)


class NodeClaimSerializer(CamelSerializer):
    """The claim that a node last reported. `takeover_id` is set while a takeover is still open for it.

    `continuable`: the node obeys another master and answers, so only a person can decide how to continue.
    """

    node_id = serializers.CharField()
    state = serializers.ChoiceField(choices=NODE_STATES)
    reasons = serializers.ListField(child=serializers.CharField())
    agent_epoch = serializers.IntegerField(allow_null=True)
    agent_instance = serializers.CharField(allow_null=True)
    takeover_id = serializers.CharField(allow_null=True)
    continuable = serializers.BooleanField()


class FencingSerializer(CamelSerializer):
    """The master's claim, whether it is fenced, and the claims that the nodes obey."""

    state = serializers.ChoiceField(choices=MASTER_STATES)
    epoch = serializers.IntegerField(allow_null=True)
    instance_id = serializers.CharField(allow_null=True)
    fenced = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)
    stood_down_at = serializers.DateTimeField(allow_null=True)
    takeover_id = serializers.CharField(allow_null=True)
    nodes = NodeClaimSerializer(many=True)


def fencing_view(identity: Any, nodes: list[Node]) -> dict[str, Any]:
    """Return the values of `FencingSerializer` from the identity's row (None before it exists) and the nodes."""
    reason = identity.fenced_reason if identity else ""
    return {
        "state": "unknown" if identity is None else "fenced" if reason else "commanding",
        "epoch": identity.epoch if identity else None,
        "instance_id": identity.instance_id if identity else None,
        "fenced": bool(reason),
        "reason": reason,
        "stood_down_at": identity.stood_down_at if identity else None,
        "takeover_id": identity.takeover_id or None if identity else None,
        "nodes": [_claim_of(node) for node in nodes],
    }


def _claim_of(node: Node) -> dict[str, Any]:
    shown = queries.shown_state(node, node.conditions.all())
    return {
        "node_id": node.pk,
        "state": shown.name,
        "reasons": list(shown.reasons) if shown.name == "PendingTakeover" else [],
        "agent_epoch": node.held_epoch,
        "agent_instance": node.held_instance or None,
        "takeover_id": node.takeover_id or None,
        "continuable": queries.waits_for_continuation(node),
    }
