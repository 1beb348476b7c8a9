"""``/api/nodes`` and ``/api/fencing``. Revoking and draining a node are in `jobs`."""

from datetime import timedelta

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api import printing
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
    """All machines."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="nodes_list",
        parameters=[OpenApiParameter("includeRevoked", bool, description="Revoked nodes too.")],
        responses=NodeSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Nodes by id, with GPUs and state."""
        everything = flag(request, "includeRevoked")
        found = Node.objects.all() if everything else Node.objects.not_revoked()
        pages = self.pagination_class()
        # What a list does not show may be large: files of every model folder.
        nodes = pages.paginate_queryset(found.defer("capabilities", "machine"), request, view=self) or []
        return pages.get_paginated_response(printing.rows(NodeSerializer, nodes, parts=queries.parts(nodes)))


class JoinTokens(AdminView):
    """One-time tokens for machines that are to join or to be re-paired."""

    read_role = OPERATOR
    required_role = OPERATOR
    audited = {"POST": "node.join-token"}

    @extend_schema(
        operation_id="join_tokens_create", request=JoinInputSerializer, responses={201: JoinCommandSerializer}
    )
    def post(self, request: Request) -> Response:
        """A join command. The token is in this answer and nowhere else."""
        require_reauthentication(request)
        asked = read(JoinInputSerializer, request.data)
        minutes = asked["ttl_minutes"]
        command = tokens.create(
            asked["node_id"],
            actor=self.actor,
            purpose=JoinToken.REKEY if asked["rekey"] else JoinToken.JOIN,
            display_name=asked["display_name"],
            ttl=None if minutes is None else timedelta(minutes=minutes),
            request_host=request.get_host(),
        )
        return Response(JoinCommandSerializer(command).data, status=201)


class NodeJoinTokens(AdminView):
    """The unused tokens of one node."""

    read_role = OPERATOR
    required_role = OPERATOR
    audited = {"DELETE": "node.join-token"}

    @extend_schema(operation_id="join_tokens_withdraw", responses={200: WithdrawnSerializer})
    def delete(self, request: Request, node_id: str) -> Response:
        """Expire them all."""
        return Response({"withdrawn": tokens.withdraw(node_id, self.actor)})


class Approve(AdminView):
    """Admission of a node by the key that was seen."""

    required_role = OPERATOR
    audited = {"POST": "node.approve"}

    @extend_schema(operation_id="nodes_approve", request=ApprovalSerializer, responses=NodeDetailSerializer)
    def post(self, request: Request, node_id: str) -> Response:
        """Approve the node that holds exactly this key."""
        spki = read(ApprovalSerializer, request.data)["expected_spki_sha256"]
        registry.approve(node_id, spki, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class Reject(AdminView):
    """Refusal of a node that waits."""

    required_role = OPERATOR
    audited = {"POST": "node.reject"}

    @extend_schema(operation_id="nodes_reject", request=None, responses={204: None})
    def post(self, request: Request, node_id: str) -> Response:
        """Forget the request and its key; the id may be used again."""
        registry.reject(node_id, self.actor)
        return Response(status=204)


class Undrain(AdminView):
    """Work for a node again."""

    required_role = OPERATOR
    audited = {"POST": "node.undrain"}

    @extend_schema(operation_id="nodes_undrain", request=None, responses=NodeDetailSerializer)
    def post(self, request: Request, node_id: str) -> Response:
        """Starts and placements are allowed again."""
        registry.undrain(node_id, self.actor)
        return Response(NodeDetailSerializer(queries.get(node_id)).data)


class Fencing(AdminView):
    """Who commands."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="fencing_read", responses=FencingSerializer)
    def get(self, request: Request) -> Response:
        """The master's claim, and the claim that each node holds."""
        found = FencingSerializer(fencing_view(MasterIdentity.objects.first(), queries.rows()))
        return Response(found.data)
