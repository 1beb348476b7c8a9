"""``/api/models``."""

from collections.abc import Mapping, Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import queries, registry
from models_app.api.serializers import (
    ModelInputSerializer,
    ModelSerializer,
)
from models_app.models import ModelDefinition
from nodes.models import Node


def _parsed(data: Any) -> registry.ModelInput:
    if not isinstance(data, Mapping):
        raise InvalidRequest("The body must be a JSON object.")
    return registry.parse(data, registry.of_fleet)


def _printed(models: Sequence[ModelDefinition]) -> list[dict[str, Any]]:
    node_ids = {placement.node_id_text for model in models for placement in model.placements.all()}
    # Without the large columns that a list of models does not need.
    nodes = Node.objects.defer("capabilities", "machine", "engines", "host").in_bulk(node_ids)
    return printing.rows(ModelSerializer, models, nodes=nodes)


class ModelsView(AdminView):
    """Model definitions with their placements."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": "model.create"}

    @extend_schema(operation_id="models_list", responses=ModelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List all models, by id."""
        pages = self.pagination_class()
        rows = pages.paginate_queryset(queries.all_models(), request, view=self)
        return pages.get_paginated_response(_printed(rows or []))

    @extend_schema(operation_id="models_create", request=ModelInputSerializer, responses={201: ModelSerializer})
    def post(self, request: Request) -> Response:
        """Create a model; it is not started."""
        model = registry.create(_parsed(request.data), self.actor)
        location = reverse("api-model", args=[model.pk], request=request)
        return Response(_printed([queries.one_model(model.pk)])[0], status=201, headers={"Location": location})


class ModelView(AdminView):
    """One model."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"PUT": "model.update", "DELETE": "model.delete"}

    @extend_schema(operation_id="models_read", responses=ModelSerializer)
    def get(self, request: Request, model_id: str) -> Response:
        """Show the definition with its placements and their observed state."""
        return Response(_printed([queries.one_model(model_id)])[0])

    @extend_schema(operation_id="models_update", request=ModelInputSerializer, responses=ModelSerializer)
    def put(self, request: Request, model_id: str) -> Response:
        """Replace a definition; a running engine keeps its configuration until a restart."""
        registry.update(model_id, _parsed(request.data), self.actor)
        return Response(_printed([queries.one_model(model_id)])[0])

    @extend_schema(operation_id="models_delete", responses={204: None})
    def delete(self, request: Request, model_id: str) -> Response:
        """Delete a model that runs nowhere. Its files stay on the node."""
        registry.delete(model_id, self.actor)
        return Response(status=204)
