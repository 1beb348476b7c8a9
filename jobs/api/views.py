"""Start, stop and restart of models, their logs, operations, and ``/api/status``."""

from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from jobs import queries
from jobs.api import engine_log
from jobs.api.engine_log import EARLIER_RUNS
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
from jobs.requests import cancellation, model_runs, start_questions
from jobs.states import OUTCOME
from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.parameters import choice, flag, identity, whole_number
from mirbad.api.serializers import read
from mirbad.kernel.roles import OPERATOR, VIEWER

_MAX_POSITION = 2**62


class StatusView(AdminView):
    """The status of the installation."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="status_read", responses=StatusSerializer)
    def get(self, request: Request) -> Response:
        """Return processes, nodes and models, with the reasons of problems."""
        return Response(StatusSerializer(status()).data)


class AcceptingView(AdminView):
    """A view that responds 202 with an operation and its address."""

    def accepted(self, operation: Operation) -> Response:
        """Return the response for an accepted operation."""
        location = reverse("api-operation", args=[operation.pk], request=self.request)
        return Response(OperationSerializer(operation).data, status=202, headers={"Location": location})


class AcceptingAllView(AcceptingView):
    """A view that responds 202 with the operation that represents all, and lists all."""

    def forced(self, model_id: str, *, replica: UUID | None = None, restart: bool = False) -> bool:
        """Return whether this start skips the node's memory check. ConfirmationRequired when it is asked about."""
        options = read(LaunchInputSerializer, self.request.data)
        if options["force"]:
            return True
        return start_questions.answered(
            model_id, self.actor, confirm=options["confirm"], replica=replica, restart=restart
        )

    def all_accepted(self, accepted: model_runs.Accepted) -> Response:
        """Return the response for operations on each placement of a model."""
        location = reverse("api-operation", args=[accepted.operation.pk], request=self.request)
        return Response(AcceptedSerializer(accepted).data, status=202, headers={"Location": location})


class StartModel(AcceptingAllView):
    """Start of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.start"}

    @extend_schema(operation_id="models_start", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Start the model where it is placed. Repeating the request returns the same operation."""
        return self.all_accepted(model_runs.start_all(model_id, self.actor, force=self.forced(model_id)))


class StopModel(AcceptingAllView):
    """Stop of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.stop"}

    @extend_schema(operation_id="models_stop", request=None, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Stop the model; an open start is cancelled."""
        return self.all_accepted(model_runs.stop_all(model_id, self.actor))


class RestartModel(AcceptingAllView):
    """Restart of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.restart"}

    @extend_schema(operation_id="models_restart", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Stop the model and start it with its current settings."""
        force = self.forced(model_id, restart=True)
        return self.all_accepted(model_runs.restart_all(model_id, self.actor, force=force))


class ModelLogs(AdminView):
    """The log of an engine."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="models_logs",
        parameters=[
            OpenApiParameter(
                "tail", {"type": "integer", "minimum": 1, "maximum": engine_log.MAX_LINES, "default": 200}
            ),
            OpenApiParameter("after", {"type": "integer", "minimum": 0}, description="`next` of an earlier response."),
            OpenApiParameter("nodeId", str, description="The node of the replica. Default: that of the primary."),
            OpenApiParameter(
                "run",
                {"type": "integer", "minimum": 0, "maximum": 2},
                description="1 and 2 are the runs before the last.",
            ),
        ],
        responses=LogSerializer,
    )
    def get(self, request: Request, model_id: str) -> Response:
        """Return the last lines, or those after a position."""
        tail = whole_number(request, "tail", 200, lowest=1, highest=engine_log.MAX_LINES)
        after = whole_number(request, "after", -1, lowest=0, highest=_MAX_POSITION)
        run = whole_number(request, "run", 0, lowest=0, highest=EARLIER_RUNS)
        node_id = identity(request, "nodeId")
        found = engine_log.read(model_id, tail, None if after < 0 else after, node_id=node_id, run=run)
        return Response(LogSerializer(found).data)


class OperationsView(AdminView):
    """Durable operations, open and ended."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="operations_list",
        parameters=[
            OpenApiParameter("nodeId", str),
            OpenApiParameter("modelId", str),
            OpenApiParameter("kind", str, description="Like launch, stop or move."),
            OpenApiParameter("open", bool, description="Open operations only."),
            OpenApiParameter("finished", bool, description="Ended operations only."),
            OpenApiParameter("outcome", str, enum=sorted(OUTCOME.states)),
        ],
        responses=OperationSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List operations, newest first."""
        found = Operation.objects.order_by("-id")
        if node_id := identity(request, "nodeId"):
            found = found.filter(queries.about_node(node_id))
        for parameter, column in (("modelId", "model_id_text"), ("kind", "kind")):
            if value := identity(request, parameter):
                found = found.filter(**{column: value})
        if outcome := choice(request, "outcome", OUTCOME.states):
            found = found.filter(outcome=outcome)
        if flag(request, "open"):
            found = found.filter(finished_at__isnull=True)
        if flag(request, "finished"):
            found = found.filter(finished_at__isnull=False)
        pages = self.pagination_class()
        rows = pages.paginate_queryset(found, request, view=self)
        return pages.get_paginated_response(printing.rows(OperationSerializer, rows or []))


class OneOperationView(AcceptingView):
    """One operation."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"DELETE": "job"}

    @extend_schema(operation_id="operations_read", responses=OperationDetailSerializer)
    def get(self, request: Request, operation_id: str) -> Response:
        """Return an operation with its stage, progress and timeline."""
        return Response(OperationDetailSerializer(queries.one_operation(operation_id)).data)

    @extend_schema(operation_id="operations_cancel", responses={202: OperationSerializer})
    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel an operation. A launch stops its engine first."""
        return self.accepted(cancellation.request(operation_id, self.actor))
