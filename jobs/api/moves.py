"""``/api/models/{id}/move`` and ``unplace``."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from jobs.api.serializers import FailureSerializer, OperationSerializer, ProgressSerializer
from jobs.api.views import AcceptingView
from jobs.models import Operation
from jobs.requests import moves, unplacing
from jobs.states import OUTCOME
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import queries

_MODES = ("auto", "handover", "stop-first")


class MoveInputSerializer(CamelSerializer):
    """The target of a move. GPUs by UUID or by index; `sourceNodeId` names the replica of several.

    ``auto`` is a hand-over without downtime for a model that serves, stop-first for others. `hfToken` is for a gated or
    private repository; it is sent to the target's memory only, never stored.
    """

    target_node_id = serializers.CharField(max_length=40)
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=64, default=list)
    gpu_indices = serializers.ListField(child=serializers.IntegerField(min_value=0), max_length=64, default=list)
    mode = serializers.ChoiceField(choices=_MODES, default="auto")
    source_node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    hf_token = serializers.CharField(max_length=500, allow_blank=True, allow_null=True, default=None, write_only=True)


class ForceCommitInputSerializer(CamelSerializer):
    """`confirm` is the id of the source."""

    confirm = serializers.CharField(max_length=100, allow_blank=True, default="")


class UnplaceInputSerializer(CamelSerializer):
    """`nodeId` removes the replica on that node, all without it. Without `wait` the response is 202 at once.

    `confirm` is the model's id, required unless every engine is stopped.
    """

    node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    wait = serializers.BooleanField(default=True)
    confirm = serializers.CharField(max_length=64, allow_blank=True, default="")


class MovedSetSerializer(CamelSerializer):
    """A set of files that a move downloads to its target. Null is not reported."""

    repository = serializers.CharField()
    folder = serializers.CharField()
    state = serializers.CharField()
    done_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    bytes_per_second = serializers.IntegerField(allow_null=True)


class MoveRecordSerializer(CamelSerializer):
    """A move. `start` is the reason why the model was not started on the target by a move that is done."""

    id = serializers.CharField(source="operation.pk")
    model_id = serializers.CharField(source="operation.model_id_text")
    source_node_id = serializers.CharField(allow_blank=True)
    target_node_id = serializers.CharField()
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    mode = serializers.ChoiceField(choices=_MODES[1:])
    running = serializers.BooleanField()
    stage = serializers.CharField()
    stage_since = serializers.DateTimeField(source="operation.stage_since", allow_null=True)
    paused = serializers.BooleanField()
    progress = ProgressSerializer(source="operation.progress")
    outcome = serializers.ChoiceField(choices=OUTCOME.choices, source="operation.outcome")
    error = FailureSerializer(source="operation.error")
    start = FailureSerializer()
    can_cancel = serializers.BooleanField()
    actor = serializers.CharField(source="operation.actor")
    created_at = serializers.DateTimeField(source="operation.created_at")
    finished_at = serializers.DateTimeField(source="operation.finished_at", allow_null=True)


class MoveStateSerializer(CamelSerializer):
    """The newest move of a model, null without one, and the possible actions."""

    record = MoveRecordSerializer(allow_null=True)
    can_force_commit = serializers.BooleanField()
    force_commit_consequence = serializers.CharField(allow_blank=True)
    downloads = MovedSetSerializer(many=True)


class _MovingView(AcceptingView):
    read_role = VIEWER
    required_role = OPERATOR

    def moved(self, operation: Operation) -> Response:
        """Return the response with the record of the move, and its address."""
        location = reverse("api-model-move", args=[operation.model_id_text], request=self.request)
        body = MoveRecordSerializer(moves.record_of(operation)).data
        return Response(body, status=202, headers={"Location": location})


class MoveView(_MovingView):
    """The move of a model to another node."""

    audited = {"POST": "model.move"}

    @extend_schema(operation_id="models_move_read", responses=MoveStateSerializer)
    def get(self, request: Request, model_id: str) -> Response:
        """Return the newest move of the model, open or ended."""
        queries.one_model(model_id)
        found = moves.record(model_id)
        shown: dict[str, Any] = {
            "record": found,
            "can_force_commit": found.can_force_commit if found else False,
            "force_commit_consequence": found.consequence if found else "",
            "downloads": found.downloads if found else (),
        }
        return Response(MoveStateSerializer(shown).data)

    @extend_schema(operation_id="models_move", request=MoveInputSerializer, responses={202: MoveRecordSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Move the model. Repeating the request returns the same move."""
        data = read(MoveInputSerializer, request.data)
        gpus = data["gpu_uuids"] or moves.gpus_at(data["target_node_id"], data["gpu_indices"])
        operation = moves.request(
            model_id,
            data["target_node_id"],
            gpus,
            self.actor,
            mode=data["mode"],
            hub_token=data["hf_token"] or "",
            source_node_id=data["source_node_id"],
        )
        return self.moved(operation)


class CancelMove(_MovingView):
    """Cancellation of a move."""

    audited = {"POST": "model.move"}

    @extend_schema(operation_id="models_move_cancel", request=None, responses={202: MoveRecordSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Cancel the move and undo its changes, before the cutover."""
        return self.moved(moves.cancel(model_id, self.actor))


class ForceCommitMove(_MovingView):
    """Force-commit of a move, for a source that is gone for good."""

    audited = {"POST": "model.move.force-commit"}

    @extend_schema(
        operation_id="models_move_force_commit",
        request=ForceCommitInputSerializer,
        responses={202: MoveRecordSerializer},
    )
    def post(self, request: Request, model_id: str) -> Response:
        """Give up the source; the move continues without it."""
        confirm = read(ForceCommitInputSerializer, request.data)["confirm"]
        operation = moves.force_commit(model_id, confirm, self.actor, sure=lambda: require_reauthentication(request))
        return self.moved(operation)


class UnplaceModel(AcceptingView):
    """Unplace of a model."""

    required_role = OPERATOR
    audited = {"POST": "model.unplace"}

    @extend_schema(
        operation_id="models_unplace",
        request=UnplaceInputSerializer,
        responses={200: OperationSerializer, 202: OperationSerializer},
    )
    def post(self, request: Request, model_id: str) -> Response:
        """Stop it and take it off its node; 504 when it does not stop in time. Its folder stays."""
        data = read(UnplaceInputSerializer, request.data)
        operation = unplacing.request(model_id, self.actor, node_id=data["node_id"], confirm=data["confirm"])
        if not data["wait"]:
            return self.accepted(operation)
        return Response(OperationSerializer(unplacing.wait(operation)).data)
