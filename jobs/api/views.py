"""Start, stop and restart of models, their logs, operations, and ``/api/status``."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from jobs import queries, requests
from jobs.api import engine_log
from jobs.api.serializers import (
    AcceptedSerializer,
    LaunchInputSerializer,
    LogSerializer,
    OperationDetailSerializer,
    OperationSerializer,
    StatusSerializer,
)
from jobs.api.status import status
from jobs.models import Operation
from jobs.states import OUTCOME
from mirbad.accounts.views import AdminView
from mirbad.api.pagination import Page
from mirbad.api.parameters import choice, flag, identity, whole_number
from mirbad.api.serializers import read
from mirbad.kernel.roles import OPERATOR, VIEWER

_MAX_POSITION = 2**62


class Status(AdminView):
    """The whole at a glance."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="status_read", responses=StatusSerializer)
    def get(self, request: Request) -> Response:
        """Processes, nodes and models, with the reasons for what is wrong."""
        return Response(StatusSerializer(status()).data)


class Accepting(AdminView):
    """Answers 202 with the operation and where to follow it."""

    def accepted(self, operation: Operation) -> Response:
        """The answer for work that was taken on."""
        location = reverse("api-operation", args=[operation.pk], request=self.request)
        return Response(OperationSerializer(operation).data, status=202, headers={"Location": location})


class AcceptingAll(Accepting):
    """Answers 202 with the operation that stands for all, and lists all."""

    def all_accepted(self, accepted: requests.Accepted) -> Response:
        """The answer for work on each of a model's placements."""
        location = reverse("api-operation", args=[accepted.operation.pk], request=self.request)
        return Response(AcceptedSerializer(accepted).data, status=202, headers={"Location": location})


class Start(AcceptingAll):
    """Start of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.start"}

    @extend_schema(operation_id="models_start", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Start it where it stands; asked twice, it is the same operation."""
        force = read(LaunchInputSerializer, request.data)["force"]
        return self.all_accepted(requests.start_all(model_id, self.actor, force=force))


class Stop(AcceptingAll):
    """Stop of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.stop"}

    @extend_schema(operation_id="models_stop", request=None, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Stop it; an open start is ended."""
        return self.all_accepted(requests.stop_all(model_id, self.actor))


class Restart(AcceptingAll):
    """Restart of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.restart"}

    @extend_schema(operation_id="models_restart", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Stop it and start it with its present settings."""
        force = read(LaunchInputSerializer, request.data)["force"]
        return self.all_accepted(requests.restart_all(model_id, self.actor, force=force))


class Logs(AdminView):
    """What an engine wrote."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="models_logs",
        parameters=[
            OpenApiParameter(
                "tail", {"type": "integer", "minimum": 1, "maximum": engine_log.MAX_LINES, "default": 200}
            ),
            OpenApiParameter("after", {"type": "integer", "minimum": 0}, description="`next` of an earlier answer."),
            OpenApiParameter("nodeId", str, description="Which of its nodes; the first replica's when left out."),
        ],
        responses=LogSerializer,
    )
    def get(self, request: Request, model_id: str) -> Response:
        """The last lines, or those after a position."""
        tail = whole_number(request, "tail", 200, lowest=1, highest=engine_log.MAX_LINES)
        after = whole_number(request, "after", -1, lowest=0, highest=_MAX_POSITION)
        found = engine_log.read(model_id, tail, None if after < 0 else after, node_id=identity(request, "nodeId"))
        return Response(LogSerializer(found).data)


class Operations(AdminView):
    """What takes time, and what became of it."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="operations_list",
        parameters=[
            OpenApiParameter("nodeId", str),
            OpenApiParameter("modelId", str),
            OpenApiParameter("kind", str, description="As launch, stop, move."),
            OpenApiParameter("open", bool, description="Only what is not over yet."),
            OpenApiParameter("finished", bool, description="Only what is over."),
            OpenApiParameter("outcome", str, enum=sorted(OUTCOME.states)),
        ],
        responses=OperationSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Operations, newest first."""
        found = Operation.objects.order_by("-id")
        if node_id := identity(request, "nodeId"):
            found = found.filter(queries.about_node(node_id))
        for parameter, column in (("modelId", "model_id_text"), ("kind", "kind")):
            if wanted := identity(request, parameter):
                found = found.filter(**{column: wanted})
        if outcome := choice(request, "outcome", OUTCOME.states):
            found = found.filter(outcome=outcome)
        if flag(request, "open"):
            found = found.filter(finished_at__isnull=True)
        if flag(request, "finished"):
            found = found.filter(finished_at__isnull=False)
        pages = self.pagination_class()
        rows = pages.paginate_queryset(found, request, view=self)
        return pages.get_paginated_response(OperationSerializer(rows, many=True).data)


class OneOperation(Accepting):
    """One operation."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"DELETE": "job"}

    @extend_schema(operation_id="operations_read", responses=OperationDetailSerializer)
    def get(self, request: Request, operation_id: str) -> Response:
        """Its stage, its progress, its timeline."""
        return Response(OperationDetailSerializer(queries.one_operation(operation_id)).data)

    @extend_schema(operation_id="operations_cancel", responses={202: OperationSerializer})
    def delete(self, request: Request, operation_id: str) -> Response:
        """Ask it to end; a launch stops its engine first."""
        return self.accepted(requests.cancel(operation_id, self.actor))
