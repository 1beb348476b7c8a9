"""Start, stop and restart of one replica of a model."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.serializers import AcceptedSerializer, LaunchInputSerializer
from jobs.api.views import AcceptingAllView
from jobs.requests import model_runs
from mirbad.kernel.roles import OPERATOR


class StartReplica(AcceptingAllView):
    """Start of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.start"}

    @extend_schema(operation_id="replicas_start", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Start every shard of the replica."""
        force = self.forced(model_id, replica=replica)
        return self.all_accepted(model_runs.start_all(model_id, self.actor, force=force, replica=replica))


class StopReplica(AcceptingAllView):
    """Stop of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.stop"}

    @extend_schema(operation_id="replicas_stop", request=None, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Stop every shard of the replica; the model's other replicas keep running."""
        return self.all_accepted(model_runs.stop_all(model_id, self.actor, replica=replica))


class RestartReplica(AcceptingAllView):
    """Restart of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.restart"}

    @extend_schema(operation_id="replicas_restart", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Stop the replica and start it with the model's current settings."""
        force = self.forced(model_id, replica=replica, restart=True)
        return self.all_accepted(model_runs.restart_all(model_id, self.actor, force=force, replica=replica))
