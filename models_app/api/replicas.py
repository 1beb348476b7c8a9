"""``/api/models/{id}/replicas``."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from mirbad.accounts.views import AdminView
from mirbad.api.serializers import read
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import queries
from models_app.api.serializers import ReplicaInputSerializer, ReplicaSerializer
from models_app.placement import apply


class ReplicasView(AdminView):
    """The replicas of one model; the model itself lists them."""

    required_role = OPERATOR
    audited = {"POST": "model.update"}

    @extend_schema(operation_id="replicas_create", request=ReplicaInputSerializer, responses={201: ReplicaSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Add a replica on one node, or on several that share a fabric; it is not started."""
        items = read(ReplicaInputSerializer, request.data)["placements"]
        placements = [(item["node_id"], item["gpu_uuids"]) for item in items]
        made = apply.add_replica(model_id, placements, self.actor)
        location = reverse("api-model-replica", args=[model_id, made.id], request=request)
        return Response(ReplicaSerializer(made).data, status=201, headers={"Location": location})


class ReplicaView(AdminView):
    """One replica."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"DELETE": "model.unplace"}

    @extend_schema(operation_id="replicas_read", responses=ReplicaSerializer)
    def get(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Show the shards with their observed state."""
        found = next((one for one in queries.replicas_of(queries.one_model(model_id)) if one.id == replica), None)
        if found is None:
            raise NotFound(f"Model {model_id!r} has no replica {str(replica)!r}.")
        return Response(ReplicaSerializer(found).data)

    @extend_schema(operation_id="replicas_delete", responses={204: None})
    def delete(self, request: Request, model_id: str, replica: UUID) -> Response:
        """Remove a stopped replica from its nodes; the last one is removed by unplace. Its files stay."""
        apply.remove_replica(model_id, replica, self.actor)
        return Response(status=204)
