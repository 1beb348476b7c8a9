"""``/api/nodes`` and ``/api/fencing``. Routes to revoke and drain a node are in `jobs`."""

from datetime import timedelta

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api import origins, printing
from mirbad.api.pagination import Page
from mirbad.api.parameters import flag
from mirbad.api.serializers import read
from mirbad.kernel.roles import OPERATOR, VIEWER
from nodes import queries, registry
from nodes.api.serializers import (
    ApprovalSerializer,
    FencingSerializer,
    JoinCommandSerializer,
    JoinInputSerializer,
    NodeDetailSerializer,
    NodeSerializer,
    WithdrawnSerializer,
    fencing_view,
)
from nodes.enrollment import tokens
from nodes.models import JoinToken, MasterIdentity, Node


class Nodes(AdminView):
    """All nodes."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="nodes_list",
        parameters=[OpenApiParameter("includeRevoked", bool, description="Include revoked nodes.")],
        responses=NodeSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List nodes by id, with GPUs and state."""
        everything = flag(request, "includeRevoked")
        found = Node.objects.all() if everything else Node.objects.not_revoked()
        pages = self.pagination_class()
        # Large columns that a list does not show: files of every model folder.
        nodes = pages.paginate_queryset(found.defer("capabilities", "machine"), request, view=self) or []
        return pages.get_paginated_response(printing.rows(NodeSerializer, nodes, parts=queries.parts(nodes)))


class JoinTokens(AdminView):
    """One-time tokens for machines that join or are re-paired."""

    read_role = OPERATOR
    required_role = OPERATOR
    audited = {"POST": "node.join-token"}

    @extend_schema(
        operation_id="join_tokens_create", request=JoinInputSerializer, responses={201: JoinCommandSerializer}
    )
    def post(self, request: Request) -> Response:
        """Create a join command. Only this response contains the token."""
        require_reauthentication(request)
        asked = read(JoinInputSerializer, request.data)
        minutes = asked["ttl_minutes"]
        command = tokens.create(
            asked["node_id"],
            actor=self.actor,
            purpose=JoinToken.REKEY if asked["rekey"] else JoinToken.JOIN,
            display_name=asked["display_name"],
            ttl=None if minutes is None else timedelta(minutes=minutes),
            browser=origins.browser(request),
        )
        return Response(JoinCommandSerializer(command).data, status=201)


class NodeJoinTokens(AdminView):
    """The unused tokens of one node."""

    read_role = OPERATOR
    required_role = OPERATOR
    audited = {"DELETE": "node.join-token"}

    @extend_schema(operation_id="join_tokens_withdraw", responses={200: WithdrawnSerializer})
    def delete(self, request: Request, node_id: str) -> Response:
        """Revoke all unused tokens of the node."""
        return Response({"withdrawn": tokens.withdraw(node_id, self.actor)})


class Approve(AdminView):
    """Approval of a node by its key."""

    required_role = OPERATOR
    audited = {"POST": "node.approve"}

    @extend_schema(operation_id="nodes_approve", request=ApprovalSerializer, responses=NodeDetailSerializer)
    def post(self, request: Request, node_id: str) -> Response:
        """Approve the node that holds exactly this key."""
        spki = read(ApprovalSerializer, request.data)["expected_spki_sha256"]
        registry.approve(node_id, spki, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class Reject(AdminView):
    """Rejection of a pending node."""

    required_role = OPERATOR
    audited = {"POST": "node.reject"}

    @extend_schema(operation_id="nodes_reject", request=None, responses={204: None})
    def post(self, request: Request, node_id: str) -> Response:
        """Delete the enrollment request and its key; the id can be used again."""
        registry.reject(node_id, self.actor)
        return Response(status=204)


class Undrain(AdminView):
    """The end of a drain."""

    required_role = OPERATOR
    audited = {"POST": "node.undrain"}

    @extend_schema(operation_id="nodes_undrain", request=None, responses=NodeDetailSerializer)
    def post(self, request: Request, node_id: str) -> Response:
        """Accept new models on the node again."""
        registry.undrain(node_id, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class Fencing(AdminView):
    """The claims that command the fleet."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="fencing_read", responses=FencingSerializer)
    def get(self, request: Request) -> Response:
        """Return the master's claim, and the claim that each node holds."""
        found = FencingSerializer(fencing_view(MasterIdentity.objects.first(), queries.rows()))
        return Response(found.data)
