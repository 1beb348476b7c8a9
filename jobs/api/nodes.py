"""``/api/nodes/{id}`` with its revoke, drain and certificate rotation. All other routes of nodes are in `nodes`."""

from collections.abc import Mapping

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.requests import evacuation, identity
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.roles import OPERATOR, VIEWER
from nodes import queries, registry
from nodes.api.serializers import NodeDetailSerializer, NodePatchSerializer


class RevokeInputSerializer(CamelSerializer):
    """`confirm` is the node's id. With `unplaceModels` the models there are stopped and unplaced first."""

    confirm = serializers.CharField(max_length=100, allow_blank=True, default="")
    unplace_models = serializers.BooleanField(default=False)


class NodeView(AcceptingView):
    """One machine."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"PATCH": "node.update", "DELETE": "node.revoke"}

    @extend_schema(operation_id="nodes_read", responses=NodeDetailSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """Return all details of the node."""
        return Response(NodeDetailSerializer(queries.get(node_id)).data)

    @extend_schema(operation_id="nodes_update", request=NodePatchSerializer, responses=NodeDetailSerializer)
    def patch(self, request: Request, node_id: str) -> Response:
        """Change settings. Absent members keep their value."""
        if not isinstance(request.data, Mapping):
            raise InvalidRequest("The body must be a JSON object.")
        registry.update(node_id, request.data, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)

    @extend_schema(operation_id="nodes_revoke", request=RevokeInputSerializer, responses={202: OperationSerializer})
    def delete(self, request: Request, node_id: str) -> Response:
        """Revoke the node for good, once its models are unplaced. Repeating the request returns the same operation."""
        require_reauthentication(request)
        data = read(RevokeInputSerializer, request.data)
        operation = identity.revoke(node_id, data["confirm"], self.actor, unplace_models=data["unplace_models"])
        return self.accepted(operation)


class DrainInputSerializer(CamelSerializer):
    """With `evacuate` the models of the node are moved off, one after another."""

    evacuate = serializers.BooleanField(default=False)


class DrainNode(AcceptingView):
    """Drain of a node."""

    required_role = OPERATOR
    audited = {"POST": "node.drain"}

    @extend_schema(
        operation_id="nodes_drain",
        request=DrainInputSerializer,
        responses={200: NodeDetailSerializer, 202: OperationSerializer},
    )
    def post(self, request: Request, node_id: str) -> Response:
        """Drain the node: no new models start there. Running models stay; with `evacuate` they move off."""
        if read(DrainInputSerializer, request.data)["evacuate"]:
            return self.accepted(evacuation.request(node_id, self.actor))
        registry.drain(node_id, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class RotateCertificate(AcceptingView):
    """Rotation of a node's key and certificate."""

    required_role = OPERATOR
    audited = {"POST": "node.rotate-cert"}

    @extend_schema(operation_id="nodes_rotate_cert", request=None, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Rotate the certificate, without effect on running engines."""
        return self.accepted(identity.rotate(node_id, self.actor))


class ReadmitNode(AcceptingView):
    """Return of a node with an expired certificate."""

    required_role = OPERATOR
    audited = {"POST": "node.rotate-cert"}

    @extend_schema(operation_id="nodes_readmit", request=None, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Allow the node to return once by its key, within a day, and renew its certificate then."""
        require_reauthentication(request)
        return self.accepted(identity.readmit(node_id, self.actor))
