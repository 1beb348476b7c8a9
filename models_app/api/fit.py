"""``/api/nodes/{id}/fit`` and ``/api/placements``: fit of a model, ranking of nodes, placement on the best one."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.views import AdminView
from mirbad.api.parameters import identity
from mirbad.api.serializers import CamelSerializer, ProblemItemSerializer, read
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import queries, registry
from models_app.api.serializers import ModelInputSerializer, PlacementSerializer
from models_app.fit.verdict import FitState, FitVerdict
from models_app.placement import auto_place, candidates, fit_preview, planner
from models_app.placement.workload import Workload, of_input, of_model

FIT_STATES = [state.value for state in FitState]
_MOST_GPUS = 64


class PartSerializer(CamelSerializer):
    """One part of the memory on each GPU, or of the host without GPUs; null is unknown, `words` give the reason."""

    name = serializers.CharField()
    bytes = serializers.IntegerField(allow_null=True)
    words = serializers.CharField()


class UsedInputSerializer(CamelSerializer):
    """A value that the estimate is based on, and its source."""

    name = serializers.CharField()
    value = serializers.CharField()
    read_from = serializers.CharField(source="source")


class LineSerializer(CamelSerializer):
    """One GPU, or the host (no `gpuUuid`). `usableBytes` is free memory after reserve and promises."""

    name = serializers.CharField()
    gpu_uuid = serializers.CharField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    free_bytes = serializers.IntegerField(allow_null=True)
    reserve_bytes = serializers.IntegerField()
    promised_bytes = serializers.IntegerField()
    usable_bytes = serializers.IntegerField(allow_null=True)
    needed_bytes = serializers.IntegerField(allow_null=True)
    headroom_bytes = serializers.IntegerField(allow_null=True)
    state = serializers.ChoiceField(choices=FIT_STATES)
    reason = serializers.CharField(allow_blank=True)


class FitSerializer(CamelSerializer):
    """The fit of a model on a node now."""

    node_id = serializers.CharField()
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(choices=FIT_STATES)
    words = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())
    lines = LineSerializer(many=True)
    parts = PartSerializer(many=True)
    inputs = UsedInputSerializer(many=True)
    problems = ProblemItemSerializer(many=True)
    context_tokens = serializers.IntegerField(allow_null=True)
    token_bytes = serializers.IntegerField(allow_null=True)
    cpu_tokens_per_second = serializers.FloatField(allow_null=True)
    telemetry_age_seconds = serializers.FloatField(allow_null=True)


class FitInputSerializer(CamelSerializer):
    """A stored model by its id, or a definition that is not stored; and the GPUs (without: those that it would get)."""

    model_id = serializers.CharField(max_length=64, required=False)
    definition = ModelInputSerializer(required=False)
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=_MOST_GPUS, required=False)


class PlanInputSerializer(CamelSerializer):
    """A stored model by its id, or a definition that is not stored."""

    model_id = serializers.CharField(max_length=64, required=False)
    definition = ModelInputSerializer(required=False)


class ChoiceSerializer(CamelSerializer):
    """A node and GPUs for the model, with the reasons for their rank."""

    node_id = serializers.CharField()
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(choices=FIT_STATES)
    why = serializers.ListField(child=serializers.CharField())
    cpu_tokens_per_second = serializers.FloatField(allow_null=True)


class RefusalSerializer(CamelSerializer):
    """A node that cannot take the model."""

    node_id = serializers.CharField()
    code = serializers.CharField()
    message = serializers.CharField()


class RankingSerializer(CamelSerializer):
    """Every node: a choice, the best first, or a refusal."""

    choices = ChoiceSerializer(many=True)
    refusals = RefusalSerializer(many=True)


class PlaceInputSerializer(CamelSerializer):
    """A stored model without a placement."""

    model_id = serializers.CharField(max_length=64)


class PlacedSerializer(CamelSerializer):
    """The new placement, and the reasons for it."""

    model_id = serializers.CharField()
    placement = PlacementSerializer()
    why = serializers.ListField(child=serializers.CharField())


def fit_printed(fit: fit_preview.FitPreview) -> dict[str, Any]:
    """Return a preview as JSON values in snake_case."""
    return {
        "node_id": fit.node_id,
        "gpu_uuids": fit.gpu_uuids,
        "state": fit.state.value,
        "words": fit.verdict.words,
        "reasons": fit.verdict.reasons,
        "lines": _lines(fit.verdict),
        "parts": fit.estimate.parts,
        "inputs": fit.estimate.inputs,
        "problems": [problem.to_json() for problem in fit.problems],
        "context_tokens": fit.estimate.context,
        "token_bytes": fit.estimate.token_bytes,
        "cpu_tokens_per_second": _rounded(fit.tokens_per_second),
        "telemetry_age_seconds": _rounded(fit.age_seconds),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _lines(verdict: FitVerdict) -> list[dict[str, Any]]:
    return [
        {
            "name": line.capacity.label,
            "gpu_uuid": line.capacity.uuid or None,
            "total_bytes": line.capacity.total,
            "free_bytes": line.capacity.free,
            "reserve_bytes": line.capacity.reserve,
            "promised_bytes": line.capacity.promised,
            "usable_bytes": line.capacity.usable,
            "needed_bytes": line.need,
            "headroom_bytes": line.left,
            "state": line.state.value,
            "reason": line.reason,
        }
        for line in verdict.lines
    ]


def _ranking(ranking: planner.Ranking) -> dict[str, Any]:
    choices = [
        {
            "node_id": choice.node_id,
            "gpu_uuids": choice.gpu_uuids,
            "state": choice.verdict.state.value,
            "why": choice.why,
            "cpu_tokens_per_second": _rounded(choice.tokens_per_second),
        }
        for choice in ranking.candidates
    ]
    return {"choices": choices, "refusals": ranking.rejections}


def _workload_of(data: Any) -> tuple[Workload, str]:
    """Return the workload of a body, and the id of a stored model ("" otherwise). Raises NotFound, InvalidRequest."""
    if not isinstance(data, Mapping):
        raise InvalidRequest("The body must be a JSON object.")
    model_id, definition = data.get("modelId"), data.get("definition")
    if (model_id is None) == (definition is None):
        message = "Send either modelId or definition."
        raise InvalidRequest(message, problems=[{"code": "required", "message": message, "field": "modelId"}])
    if definition is not None:
        if not isinstance(definition, Mapping):
            raise InvalidRequest("definition must be a JSON object.")
        return of_input(registry.parse(definition, registry.of_fleet)), ""
    return of_model(queries.one_model(str(model_id))), str(model_id)


class NodeFitView(AdminView):
    """The fit of a model on a node."""

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(
        operation_id="nodes_fit",
        parameters=[
            OpenApiParameter("modelId", str, required=True),
            OpenApiParameter("gpu", str, many=True, description="UUIDs. Default: the GPUs that the model would get."),
        ],
        responses=FitSerializer,
    )
    def get(self, request: Request, node_id: str) -> Response:
        """Judge a stored model by numbers of the node that are at most 5 seconds old."""
        model = queries.one_model(identity(request, "modelId"))
        gpus = request.query_params.getlist("gpu")[:_MOST_GPUS]
        found = fit_preview.on_node(of_model(model), node_id, gpus or None)
        return Response(FitSerializer(fit_printed(found)).data)

    @extend_schema(operation_id="nodes_fit_preview", request=FitInputSerializer, responses=FitSerializer)
    def post(self, request: Request, node_id: str) -> Response:
        """Judge a stored model or a definition that is not stored yet."""
        gpus = read(FitInputSerializer, request.data).get("gpu_uuids")
        workload, _ = _workload_of(request.data)
        found = fit_preview.on_node(workload, node_id, gpus)
        return Response(FitSerializer(fit_printed(found)).data)


class PlacementPlanView(AdminView):
    """The ranking of nodes for a model."""

    required_role = OPERATOR

    @extend_schema(operation_id="placements_plan", request=PlanInputSerializer, responses=RankingSerializer)
    def post(self, request: Request) -> Response:
        """Rank every node: a choice, or a refusal with its reason. Nothing is written."""
        read(PlanInputSerializer, request.data)
        workload, model_id = _workload_of(request.data)
        ranking = candidates.rank(model_id) if model_id else candidates.rank_workload(workload)
        return Response(RankingSerializer(_ranking(ranking)).data)


class PlacementsView(AdminView):
    """Placement of a model on the best node."""

    required_role = OPERATOR
    audited = {"POST": "model.update"}

    @extend_schema(operation_id="placements_create", request=PlaceInputSerializer, responses={201: PlacedSerializer})
    def post(self, request: Request) -> Response:
        """Place a model that has no placement. The choice is judged again on the write. The model is not started."""
        model_id = read(PlaceInputSerializer, request.data)["model_id"]
        placement, choice = auto_place.place(model_id, self.actor)
        body = {"model_id": model_id, "placement": placement, "why": choice.why}
        return Response(PlacedSerializer(body).data, status=201)
