"""Models and placements as JSON on ``/api``. The rules of a model are in `models_app.registry`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from mirbad.api import printing
from mirbad.api.serializers import CamelSerializer
from models_app import queries
from models_app.models import ModelDefinition, Placement
from models_app.models.definition import DELIVERIES, FIRST_BYTE_SECONDS, RESTART_POLICIES, RUNTIMES
from models_app.registry import restart_needed
from models_app.states import DESIRED, OBSERVED

_MOST_BYTES = 2**62
_SHOWN = (*OBSERVED.states, queries.UNPLACED)


class SourceSerializer(CamelSerializer):
    """The source of weights: a folder below a node's models root, and for a GGUF the file in it."""

    kind = serializers.ChoiceField(choices=["folder", "huggingface"], default="folder")
    folder = serializers.CharField(max_length=255)
    file = serializers.CharField(max_length=512, allow_blank=True, default="")
    projector = serializers.CharField(
        max_length=512,
        allow_blank=True,
        default="",
        help_text='The GGUF that reads pictures or sound; empty: the one that belongs to the file; "none": without.',
    )
    repository = serializers.CharField(max_length=255, allow_blank=True, default="")
    revision = serializers.CharField(max_length=80, allow_blank=True, default="")


class StateSerializer(CamelSerializer):
    """The state as pages show it, its reasons, and whether ``/v1`` sends requests there."""

    name = serializers.ChoiceField(choices=_SHOWN)
    reasons = serializers.ListField(child=serializers.CharField())
    serves = serializers.BooleanField()


class PlacementSerializer(CamelSerializer):
    """The placement of a model: desired and observed state. Null is not reported."""

    instance_id = serializers.UUIDField(source="pk")
    node_id = serializers.CharField(source="node_id_text")
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    generation = serializers.IntegerField()
    desired = serializers.ChoiceField(choices=DESIRED.choices)
    observed = serializers.ChoiceField(choices=OBSERVED.choices)
    observed_at = serializers.DateTimeField(allow_null=True)
    observed_reason = serializers.CharField(allow_blank=True)
    notice = serializers.SerializerMethodField(method_name="notice_of")
    notice_code = serializers.SerializerMethodField(method_name="notice_code_of")
    start_seconds = serializers.FloatField(allow_null=True)
    exits = serializers.IntegerField()
    restart_at = serializers.DateTimeField(allow_null=True)
    halted = serializers.CharField(allow_blank=True)
    replica = serializers.UUIDField()
    shard = serializers.IntegerField()
    shards = serializers.IntegerField()
    routed = serializers.BooleanField()

    def notice_of(self, placement: Placement) -> str:
        """Return what the node says of an engine that serves, but not as it was asked to."""
        return queries.notice_of(placement)

    def notice_code_of(self, placement: Placement) -> str:
        """Return the notice's code."""
        return str(placement.observed_view.get("noticeCode") or "")


class ReplicaSerializer(CamelSerializer):
    """One replica: a placement on one node, or the shards of one on several. It serves when every shard is ready."""

    id = serializers.UUIDField()
    node_ids = serializers.ListField(child=serializers.CharField())
    shards = serializers.IntegerField(source="shard_count")
    shards_ready = serializers.IntegerField(source="ready")
    desired = serializers.ChoiceField(choices=DESIRED.choices)
    routed = serializers.BooleanField()
    state = serializers.SerializerMethodField(method_name="state_of")
    placements = PlacementSerializer(many=True)

    @extend_schema_field(StateSerializer)
    def state_of(self, replica: queries.PlacedReplica) -> Any:
        """Return the shown state."""
        return self._state(queries.shown_replica_state(replica))

    @cached_property
    def _state(self) -> Callable[[queries.ShownModelState], dict[str, Any]]:
        return printing.printer(StateSerializer())


@dataclass(frozen=True, slots=True)
class _Parts:
    """The functions that print the parts of a model, built once for a list of models."""

    placement: Callable[[Placement], dict[str, Any]]
    replica: Callable[[queries.PlacedReplica], dict[str, Any]]
    state: Callable[[queries.ShownModelState], dict[str, Any]]


class ModelSerializer(CamelSerializer):
    """A model definition with its replicas. Only the names of secret environment values are shown.

    `placement` represents the model: shard 0 of its oldest replica.
    """

    _grouped: tuple[ModelDefinition, tuple[queries.PlacedReplica, ...]] | None = None

    id = serializers.CharField()
    display_name = serializers.CharField()
    runtime = serializers.ChoiceField(choices=RUNTIMES)
    delivery = serializers.ChoiceField(choices=DELIVERIES)
    image = serializers.CharField()
    image_digest = serializers.CharField()
    served_names = serializers.ListField(child=serializers.CharField())
    args = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField())
    secret_env_names = serializers.ListField(child=serializers.CharField())
    context_length = serializers.IntegerField(allow_null=True)
    gpu_memory_budget_bytes = serializers.IntegerField(allow_null=True)
    host_memory_budget_bytes = serializers.IntegerField(allow_null=True)
    start_timeout_seconds = serializers.IntegerField()
    first_byte_timeout_seconds = serializers.IntegerField()
    idle_timeout_seconds = serializers.IntegerField()
    wait_when_starting_seconds = serializers.IntegerField()
    tags = serializers.ListField(child=serializers.CharField())
    auto_start = serializers.BooleanField()
    restart_policy = serializers.ChoiceField(choices=RESTART_POLICIES)
    keep_serving = serializers.BooleanField()
    allow_pickle = serializers.BooleanField()
    sources = SourceSerializer(many=True)
    placement = serializers.SerializerMethodField(method_name="placement_of")
    placements = serializers.SerializerMethodField(method_name="placements_of")
    replicas = serializers.SerializerMethodField(method_name="replicas_of")
    state = serializers.SerializerMethodField(method_name="state_of")
    restart_needed = serializers.SerializerMethodField(method_name="needs_restart")
    held_by = serializers.SerializerMethodField(method_name="holder_of")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    @extend_schema_field(PlacementSerializer(allow_null=True))
    def placement_of(self, model: ModelDefinition) -> Any:
        """Return the placement, None for a model without one."""
        placements = self._placements(model)
        return self._write.placement(placements[0]) if placements else None

    @extend_schema_field(PlacementSerializer(many=True))
    def placements_of(self, model: ModelDefinition) -> Any:
        """Return every placement, by replica and shard."""
        return [self._write.placement(placement) for placement in self._placements(model)]

    @extend_schema_field(ReplicaSerializer(many=True))
    def replicas_of(self, model: ModelDefinition) -> Any:
        """Return the replicas; one that a move starts is among them, not routed."""
        return [self._write.replica(replica) for replica in self._replicas(model)]

    @extend_schema_field(StateSerializer)
    def state_of(self, model: ModelDefinition) -> Any:
        """Return the shown state of the whole model."""
        return self._write.state(queries.state_of_replicas(self._replicas(model)))

    @extend_schema_field(serializers.BooleanField)
    def needs_restart(self, model: ModelDefinition) -> bool:
        """Return whether the running engine lacks the latest changes. The context has `nodes`, by id."""
        nodes = self.context["nodes"]
        return any(
            restart_needed(model, placement, nodes.get(placement.node_id_text)) for placement in self._placements(model)
        )

    def _replicas(self, model: ModelDefinition) -> tuple[queries.PlacedReplica, ...]:
        """Return the replicas of `model`, grouped once for all fields of its row."""
        if self._grouped is None or self._grouped[0] is not model:
            self._grouped = model, queries.replicas_of(model)
        return self._grouped[1]

    def _placements(self, model: ModelDefinition) -> list[Placement]:
        return [placement for replica in self._replicas(model) for placement in replica.placements]

    @cached_property
    def _write(self) -> _Parts:
        return _Parts(*(printing.printer(part()) for part in (PlacementSerializer, ReplicaSerializer, StateSerializer)))

    @extend_schema_field(serializers.CharField(allow_null=True))
    def holder_of(self, model: ModelDefinition) -> str | None:
        """Return the words for the holder of the model, None without one."""
        hold = getattr(model, "hold", None)
        return None if hold is None else str(hold.words)


class PlacementInputSerializer(CamelSerializer):
    """The node, and on a node whose GPUs have memory of their own, the GPUs."""

    node_id = serializers.CharField(max_length=40)
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=64, default=list)


class ReplicaInputSerializer(CamelSerializer):
    """The nodes of a new replica: one, or several that serve together, rank 0 first."""

    placements = PlacementInputSerializer(many=True, allow_empty=False)


class ModelInputSerializer(CamelSerializer):
    """A whole definition, to create or to save. This documents the body; `registry.parse` validates it."""

    id = serializers.RegexField(r"^[a-z0-9][a-z0-9._-]{0,63}$")
    display_name = serializers.CharField(max_length=100, allow_blank=True, default="")
    runtime = serializers.ChoiceField(choices=RUNTIMES)
    delivery = serializers.ChoiceField(choices=DELIVERIES)
    image = serializers.CharField(max_length=255, allow_blank=True, default="")
    image_digest = serializers.CharField(max_length=80, allow_blank=True, default="")
    served_names = serializers.ListField(child=serializers.CharField(max_length=128), max_length=16, default=list)
    args = serializers.ListField(child=serializers.CharField(max_length=8192), max_length=256, default=list)
    env = serializers.DictField(child=serializers.CharField(max_length=8192), default=dict)
    secret_env = serializers.DictField(child=serializers.CharField(allow_null=True), default=dict)
    context_length = serializers.IntegerField(min_value=1, max_value=2**31 - 1, allow_null=True, default=None)
    gpu_memory_budget_bytes = serializers.IntegerField(
        min_value=1, max_value=_MOST_BYTES, allow_null=True, default=None
    )
    host_memory_budget_bytes = serializers.IntegerField(
        min_value=1, max_value=_MOST_BYTES, allow_null=True, default=None
    )
    start_timeout_seconds = serializers.IntegerField(min_value=1, max_value=86400, default=1800)
    first_byte_timeout_seconds = serializers.IntegerField(min_value=1, max_value=86400, default=FIRST_BYTE_SECONDS)
    idle_timeout_seconds = serializers.IntegerField(min_value=1, max_value=86400, default=300)
    wait_when_starting_seconds = serializers.IntegerField(min_value=0, max_value=3600, default=0)
    tags = serializers.ListField(child=serializers.CharField(max_length=40), max_length=32, default=list)
    auto_start = serializers.BooleanField(default=False)
    restart_policy = serializers.ChoiceField(choices=RESTART_POLICIES, default="on-failure")
    keep_serving = serializers.BooleanField(default=False)
    allow_pickle = serializers.BooleanField(default=False)
    sources = SourceSerializer(many=True, required=False)
    placement = PlacementInputSerializer(required=False, allow_null=True)
    placements = PlacementInputSerializer(many=True, required=False)
    placement_generation = serializers.IntegerField(allow_null=True, required=False)
