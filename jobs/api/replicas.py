"""Start, stop and restart of one replica of a model."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs import requests
from jobs.api.serializers import AcceptedSerializer, LaunchInputSerializer
from jobs.api.views import AcceptingAll
from mirbad.api.serializers import read
from mirbad.kernel.roles import OPERATOR


class Start(AcceptingAll):
    """Start of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.start"}

    @extend_schema(operation_id="replicas_start", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Start it where it stands, every shard at once."""
        force = read(LaunchInputSerializer, request.data)["force"]
        return self.all_accepted(requests.start_all(model_id, self.actor, force=force, replica=replica))


class Stop(AcceptingAll):
    """Stop of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.stop"}

    @extend_schema(operation_id="replicas_stop", request=None, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Stop it, every shard; the model's other replicas go on."""
        return self.all_accepted(requests.stop_all(model_id, self.actor, replica=replica))


class Restart(AcceptingAll):
    """Restart of a replica."""

    required_role = OPERATOR
    audited = {"POST": "model.restart"}

    @extend_schema(operation_id="replicas_restart", request=LaunchInputSerializer, responses={202: AcceptedSerializer})
    def post(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Stop it and start it with the model's present settings."""
        force = read(LaunchInputSerializer, request.data)["force"]
        return self.all_accepted(requests.restart_all(model_id, self.actor, force=force, replica=replica))
