"""``/api/audit/witnesses``: what the nodes hold of the audit log, and the decision that they take another one."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OWNER, VIEWER
from nodes import accepted_logs
from nodes.models import NodeWitness


class WitnessSerializer(CamelSerializer):
    """A node as a witness, as it answered at `at`: the head that it holds, one that it refused, accepted breaks."""

    node_id = serializers.CharField()
    at = serializers.DateTimeField()
    agrees = serializers.BooleanField()
    key = serializers.CharField(source="view.key")
    held = serializers.DictField(source="view.held", allow_null=True)
    held_at = serializers.CharField(source="view.heldAt", allow_null=True)
    refused = serializers.DictField(source="view.refused", allow_null=True)
    refused_at = serializers.CharField(source="view.refusedAt", allow_null=True)
    breaks = serializers.ListField(source="view.breaks", child=serializers.DictField())


class WitnessesSerializer(CamelSerializer):
    """All witnesses."""

    items = WitnessSerializer(many=True)


class AcceptLogInputSerializer(CamelSerializer):
    """`confirm` is the phrase ``this audit log counts``; without `node_ids` all nodes in conflict are meant."""

    reason = serializers.CharField(max_length=accepted_logs.LONGEST_REASON)
    confirm = serializers.CharField(max_length=200, allow_blank=True)
    node_ids = serializers.ListField(child=serializers.CharField(max_length=40), max_length=1000, default=list)


class AcceptedLogSerializer(CamelSerializer):
    """The nodes that take the log within minutes."""

    node_ids = serializers.ListField(child=serializers.CharField())


class Witnesses(AdminView):
    """The nodes as witnesses of the audit log."""

    read_role = VIEWER
    required_role = OWNER

    @extend_schema(operation_id="audit_witnesses", responses=WitnessesSerializer)
    def get(self, request: Request) -> Response:
        """List what each node holds of the log."""
        rows: Any = NodeWitness.objects.filter(node__lifecycle="approved").order_by("node")
        return Response(WitnessesSerializer({"items": rows}).data)


class AcceptLog(AdminView):
    """The decision that nodes take the present log, as after a restore."""

    required_role = OWNER
    audited = {"POST": "audit.accept-log"}

    @extend_schema(operation_id="audit_accept_log", request=AcceptLogInputSerializer, responses=AcceptedLogSerializer)
    def post(self, request: Request) -> Response:
        """Decide; the nodes keep the head that they leave, and the decision, for good."""
        require_reauthentication(request)
        data = read(AcceptLogInputSerializer, request.data)
        taken = accepted_logs.accept(data["reason"], data["confirm"], self.actor, data["node_ids"])
        return Response(AcceptedLogSerializer({"node_ids": taken}).data)
