"""The shape of models and placements on ``/api``. The rules of a model are in `models_app.registry`."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from mirbad.api.serializers import CamelSerializer
from models_app import queries
from models_app.models import ModelDefinition, Placement
from models_app.models.definition import DELIVERIES, RUNTIMES
from models_app.registry import restart_needed
from models_app.states import DESIRED, OBSERVED

_MOST_BYTES = 2**62
_SHOWN = (*OBSERVED.states, queries.UNPLACED)


class SourceSerializer(CamelSerializer):
    """Where the weights are: a folder below a node's models root, and for a GGUF the file in it."""

    kind = serializers.ChoiceField(choices=["folder", "huggingface"], default="folder")
    folder = serializers.CharField(max_length=255)
    file = serializers.CharField(max_length=512, allow_blank=True, default="")
    repository = serializers.CharField(max_length=255, allow_blank=True, default="")
    revision = serializers.CharField(max_length=80, allow_blank=True, default="")


class StateSerializer(CamelSerializer):
    """What a page shows: a state, the reasons for it, and whether ``/v1`` serves from there."""

    name = serializers.ChoiceField(choices=_SHOWN)
    reasons = serializers.ListField(child=serializers.CharField())
    serves = serializers.BooleanField()


class PlacementSerializer(CamelSerializer):
    """Where a model stands: what is wanted, and what was seen. None is not reported."""

    instance_id = serializers.UUIDField(source="pk")
    node_id = serializers.CharField(source="node_id_text")
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    generation = serializers.IntegerField()
    desired = serializers.ChoiceField(choices=DESIRED.choices)
    observed = serializers.ChoiceField(choices=OBSERVED.choices)
    observed_at = serializers.DateTimeField(allow_null=True)
    observed_reason = serializers.CharField(allow_blank=True)
    start_seconds = serializers.FloatField(allow_null=True)
    replica = serializers.UUIDField()
    shard = serializers.IntegerField()
    shards = serializers.IntegerField()
    routed = serializers.BooleanField()


class ReplicaSerializer(CamelSerializer):
    """One replica: a placement on one node, or the shards of one on several. It serves when every shard is ready."""

    id = serializers.UUIDField()
    node_ids = serializers.ListField(child=serializers.CharField())
    shards = serializers.IntegerField(source="wanted")
    shards_ready = serializers.IntegerField(source="ready")
    desired = serializers.ChoiceField(choices=DESIRED.choices)
    routed = serializers.BooleanField()
    state = serializers.SerializerMethodField(method_name="state_of")
    placements = PlacementSerializer(many=True)

    @extend_schema_field(StateSerializer)
    def state_of(self, replica: queries.Replica) -> Any:
        """The shown state."""
        return StateSerializer(queries.shown_replica_state(replica)).data


class ModelSerializer(CamelSerializer):
    """A model definition with its replicas. Of secret environment values only the names are known.

    `placement` is the one that stands for the model: shard 0 of its oldest replica.
    """

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
        """The placement, or None for a model that stands nowhere."""
        placement: Placement | None = queries.primary(model)
        return None if placement is None else PlacementSerializer(placement).data

    @extend_schema_field(PlacementSerializer(many=True))
    def placements_of(self, model: ModelDefinition) -> Any:
        """Every placement, by replica and shard."""
        return PlacementSerializer(queries.placements_of(model), many=True).data

    @extend_schema_field(ReplicaSerializer(many=True))
    def replicas_of(self, model: ModelDefinition) -> Any:
        """Where it stands; what a move brings up is among them, not routed."""
        return ReplicaSerializer(queries.replicas_of(model), many=True).data

    @extend_schema_field(StateSerializer)
    def state_of(self, model: ModelDefinition) -> Any:
        """The shown state of the whole."""
        return StateSerializer(queries.shown_model_state(model)).data

    @extend_schema_field(serializers.BooleanField)
    def needs_restart(self, model: ModelDefinition) -> bool:
        """Whether what runs lacks the latest changes. The context brings `nodes`, by id."""
        nodes = self.context["nodes"]
        return any(
            restart_needed(model, placement, nodes.get(placement.node_id_text))
            for placement in queries.placements_of(model)
        )

    @extend_schema_field(serializers.CharField(allow_null=True))
    def holder_of(self, model: ModelDefinition) -> str | None:
        """Words for who keeps it from being changed, or None."""
        hold = getattr(model, "hold", None)
        return None if hold is None else str(hold.words)


class PlacementInputSerializer(CamelSerializer):
    """The node, and on one with GPUs of their own memory, which of them."""

    node_id = serializers.CharField(max_length=40)
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=64, default=list)


class ReplicaInputSerializer(CamelSerializer):
    """Where a new replica is to stand: one node, or for one that several serve together each of them, rank 0 first."""

    placements = PlacementInputSerializer(many=True, allow_empty=False)


class ModelInputSerializer(CamelSerializer):
    """A whole definition, to create or to save. Documentation of the body; `registry.parse` is the judge."""

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
    first_byte_timeout_seconds = serializers.IntegerField(min_value=1, max_value=86400, default=300)
    idle_timeout_seconds = serializers.IntegerField(min_value=1, max_value=86400, default=300)
    wait_when_starting_seconds = serializers.IntegerField(min_value=0, max_value=3600, default=0)
    tags = serializers.ListField(child=serializers.CharField(max_length=40), max_length=32, default=list)
    auto_start = serializers.BooleanField(default=False)
    keep_serving = serializers.BooleanField(default=False)
    allow_pickle = serializers.BooleanField(default=False)
    sources = SourceSerializer(many=True, required=False)
    placement = PlacementInputSerializer(required=False, allow_null=True)
    placements = PlacementInputSerializer(many=True, required=False)
    placement_generation = serializers.IntegerField(allow_null=True, required=False)
