"""``/api/models/{id}/move`` and ``unplace``: where a model stands."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from jobs import moves, unplacing
from jobs.api.serializers import FailureSerializer, OperationSerializer, ProgressSerializer
from jobs.api.views import Accepting
from jobs.models import Operation
from jobs.states import OUTCOME
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import queries

_MODES = ("auto", "handover", "stop-first")


class MoveInputSerializer(CamelSerializer):
    """Where a model is to go. GPUs by UUID or by index; `sourceNodeId` says which of several replicas.

    ``auto`` hands over what runs, without a pause, and stops first what cannot be handed over. `hfToken` is for a gated
    or private repository; it goes to the target's memory and is written down nowhere.
    """

    target_node_id = serializers.CharField(max_length=40)
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=64, default=list)
    gpu_indices = serializers.ListField(child=serializers.IntegerField(min_value=0), max_length=64, default=list)
    mode = serializers.ChoiceField(choices=_MODES, default="auto")
    source_node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    hf_token = serializers.CharField(max_length=500, allow_blank=True, allow_null=True, default=None, write_only=True)


class ForceCommitInputSerializer(CamelSerializer):
    """`confirm` is the id of the node that is given up."""

    confirm = serializers.CharField(max_length=100, allow_blank=True, default="")


class UnplaceInputSerializer(CamelSerializer):
    """`nodeId` takes one replica off that node, all when it is left out. Without `wait` the answer is 202 at once."""

    node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    wait = serializers.BooleanField(default=True)


class MovedSetSerializer(CamelSerializer):
    """A set of files that a move brings to its target. Null is not reported."""

    repository = serializers.CharField()
    folder = serializers.CharField()
    state = serializers.CharField()
    done_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    bytes_per_second = serializers.IntegerField(allow_null=True)


class MoveRecordSerializer(CamelSerializer):
    """A move. `start` says why the model was not started on the target, when the move is done all the same."""

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
    """The newest move of a model, null when there was none, and what can be done about it."""

    record = MoveRecordSerializer(allow_null=True)
    can_force_commit = serializers.BooleanField()
    force_commit_consequence = serializers.CharField(allow_blank=True)
    downloads = MovedSetSerializer(many=True)


class _Moving(Accepting):
    read_role = VIEWER
    required_role = OPERATOR

    def moved(self, operation: Operation) -> Response:
        """The answer with the record, and where to follow it."""
        location = reverse("api-model-move", args=[operation.model_id_text], request=self.request)
        body = MoveRecordSerializer(moves.record_of(operation)).data
        return Response(body, status=202, headers={"Location": location})


class Move(_Moving):
    """The move of a model to another node."""

    audited = {"POST": "model.move"}

    @extend_schema(operation_id="models_move_read", responses=MoveStateSerializer)
    def get(self, request: Request, model_id: str) -> Response:
        """How it stands; a finished one stays."""
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
        """Move it; asked twice, it is the same move."""
        asked = read(MoveInputSerializer, request.data)
        gpus = asked["gpu_uuids"] or moves.gpus_at(asked["target_node_id"], asked["gpu_indices"])
        operation = moves.request(
            model_id,
            asked["target_node_id"],
            gpus,
            self.actor,
            mode=asked["mode"],
            hub_token=asked["hf_token"] or "",
            source_node_id=asked["source_node_id"],
        )
        return self.moved(operation)


class CancelMove(_Moving):
    """The end of a move that nobody wants any more."""

    audited = {"POST": "model.move"}

    @extend_schema(operation_id="models_move_cancel", request=None, responses={202: MoveRecordSerializer})
    def post(self, request: Request, model_id: str) -> Response:
        """Undo it, while there is a way back."""
        return self.moved(moves.cancel(model_id, self.actor))


class ForceCommit(_Moving):
    """A move whose source is gone for good."""

    audited = {"POST": "model.move.force-commit"}

    @extend_schema(
        operation_id="models_move_force_commit",
        request=ForceCommitInputSerializer,
        responses={202: MoveRecordSerializer},
    )
    def post(self, request: Request, model_id: str) -> Response:
        """Give up the source; the move goes on without it."""
        confirm = read(ForceCommitInputSerializer, request.data)["confirm"]
        operation = moves.force_commit(model_id, confirm, self.actor, sure=lambda: require_reauthentication(request))
        return self.moved(operation)


class Unplace(Accepting):
    """A model on no node."""

    required_role = OPERATOR
    audited = {"POST": "model.unplace"}

    @extend_schema(
        operation_id="models_unplace",
        request=UnplaceInputSerializer,
        responses={200: OperationSerializer, 202: OperationSerializer},
    )
    def post(self, request: Request, model_id: str) -> Response:
        """Stop it and take it off its node; 504 when it does not stop in time. Its folder stays."""
        asked = read(UnplaceInputSerializer, request.data)
        operation = unplacing.request(model_id, self.actor, node_id=asked["node_id"])
        if not asked["wait"]:
            return self.accepted(operation)
        return Response(OperationSerializer(unplacing.wait(operation)).data)
