"""``GET /api/audit``."""

from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from audit import checkpoints, queries
from audit.api.serializers import AuditCheckpointSerializer, AuditPageSerializer, AuditProofSerializer
from mirbad.api.parameters import identity, whole_number
from mirbad.kernel.errors import InvalidRequest, NotFound
from mirbad.kernel.roles import OWNER, VIEWER

_MAX_ID = 2**63 - 1


class AuditLines(APIView):
    """The audit log, newest first."""

    read_role = VIEWER
    required_role = OWNER

    @extend_schema(
        operation_id="audit_list",
        parameters=[
            OpenApiParameter("nodeId", str, description="Only lines of this node."),
            OpenApiParameter("modelId", str, description="Only lines of this model."),
            OpenApiParameter("since", OpenApiTypes.DATETIME, description="Only lines from this time on (RFC 3339)."),
            OpenApiParameter(
                "max", {"type": "integer", "minimum": 1, "maximum": queries.MAX, "default": queries.DEFAULT_MAX}
            ),
            OpenApiParameter("before", {"type": "integer", "minimum": 1}, description="Only lines before this id."),
        ],
        responses=AuditPageSerializer,
    )
    def get(self, request: Request) -> Response:
        """List lines that match, with the address of the older ones."""
        count = whole_number(request, "max", queries.DEFAULT_MAX, lowest=1, highest=queries.MAX)
        before = whole_number(request, "before", 0, lowest=1, highest=_MAX_ID)
        found = queries.lines(
            node_id=identity(request, "nodeId"), model_id=identity(request, "modelId"), since=_since(request)
        )
        if before:
            found = found.filter(id__lt=before)
        lines = list(found[: count + 1])
        older = None
        if len(lines) > count:
            lines = lines[:count]
            older = replace_query_param(request.build_absolute_uri(), "before", str(lines[-1].pk))
        items: list[dict[str, Any]] = [{"id": line.pk, **queries.document(line)} for line in lines]
        return Response({"items": items, "next": older}, headers={"Cache-Control": "no-store"})


class AuditCheckpoint(APIView):
    """The newest signed head of the log."""

    read_role = VIEWER
    required_role = OWNER

    @extend_schema(operation_id="audit_checkpoint", responses=AuditCheckpointSerializer)
    def get(self, request: Request) -> Response:
        """Return the newest head with the nodes that witnessed it, for ``verify_audit.py``."""
        newest = checkpoints.latest()
        if newest is None:
            raise NotFound("No head of the audit log is signed yet. The first one is within five minutes.")
        headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="checkpoint.json"'}
        return Response(checkpoints.exported(newest), headers=headers)


class AuditProof(APIView):
    """The proof that one line is in the log."""

    read_role = VIEWER
    required_role = OWNER

    @extend_schema(
        operation_id="audit_proof",
        parameters=[OpenApiParameter("seq", {"type": "integer", "minimum": 1}, required=True)],
        responses=AuditProofSerializer,
    )
    def get(self, request: Request) -> Response:
        """Return a line, a signed head, and the proof that the line is under it, without the other lines."""
        seq = whole_number(request, "seq", 0, lowest=1, highest=_MAX_ID)
        if not seq:
            raise InvalidRequest("Name the line: seq is its number, from 1.")
        return Response(checkpoints.inclusion(seq), headers={"Cache-Control": "no-store"})


def _since(request: Request) -> datetime | None:
    text = request.query_params.get("since")
    if text is None:
        return None
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest("since must be a time with its zone, such as 2027-01-31T12:00:00Z.")
    return moment
