"""``/api/nodes/{id}`` with its revoke, its drain, and what changes its key. All else about nodes is in `nodes`."""

from collections.abc import Mapping

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs import evacuation, identity
from jobs.api.serializers import OperationSerializer
from jobs.api.views import Accepting
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


class OneNode(Accepting):
    """One machine."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"PATCH": "node.update", "DELETE": "node.revoke"}

    @extend_schema(operation_id="nodes_read", responses=NodeDetailSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """All that is known of it."""
        return Response(NodeDetailSerializer(queries.get(node_id)).data)

    @extend_schema(operation_id="nodes_update", request=NodePatchSerializer, responses=NodeDetailSerializer)
    def patch(self, request: Request, node_id: str) -> Response:
        """Change settings; members that are not sent stay."""
        if not isinstance(request.data, Mapping):
            raise InvalidRequest("The body must be a JSON object.")
        registry.update(node_id, request.data, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)

    @extend_schema(operation_id="nodes_revoke", request=RevokeInputSerializer, responses={202: OperationSerializer})
    def delete(self, request: Request, node_id: str) -> Response:
        """Revoke it for good, once its models are off it; asked twice, it is the same operation."""
        require_reauthentication(request)
        asked = read(RevokeInputSerializer, request.data)
        operation = identity.revoke(node_id, asked["confirm"], self.actor, unplace_models=asked["unplace_models"])
        return self.accepted(operation)


class DrainInputSerializer(CamelSerializer):
    """With `evacuate` the models of the node are moved off, one after another."""

    evacuate = serializers.BooleanField(default=False)


class Drain(Accepting):
    """No new work for a node."""

    required_role = OPERATOR
    audited = {"POST": "node.drain"}

    @extend_schema(
        operation_id="nodes_drain",
        request=DrainInputSerializer,
        responses={200: NodeDetailSerializer, 202: OperationSerializer},
    )
    def post(self, request: Request, node_id: str) -> Response:
        """Nothing new starts. What runs goes on, or with `evacuate` is moved off: then it is an operation."""
        if read(DrainInputSerializer, request.data)["evacuate"]:
            return self.accepted(evacuation.request(node_id, self.actor))
        registry.drain(node_id, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class RotateCertificate(Accepting):
    """Another key and certificate for a node that serves."""

    required_role = OPERATOR
    audited = {"POST": "node.rotate-cert"}

    @extend_schema(operation_id="nodes_rotate_cert", request=None, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Rotate its certificate; nothing that runs there notices."""
        return self.accepted(identity.rotate(node_id, self.actor))


class Readmit(Accepting):
    """The return of a node whose certificate has expired."""

    required_role = OPERATOR
    audited = {"POST": "node.rotate-cert"}

    @extend_schema(operation_id="nodes_readmit", request=None, responses={202: OperationSerializer})
    def post(self, request: Request, node_id: str) -> Response:
        """Let it in once by its key alone, within a day, and renew its certificate then."""
        require_reauthentication(request)
        return self.accepted(identity.readmit(node_id, self.actor))
