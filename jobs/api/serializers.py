"""The shape of operations, logs and the status of the whole on ``/api``."""

import re
from typing import Any

from rest_framework import serializers

from jobs import telling
from jobs.models import Operation
from jobs.requests import Accepted
from jobs.states import OUTCOME
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel import clock

_SNAKE = re.compile(r"[A-Z]")


class ProgressSerializer(CamelSerializer):
    """How far a stage is; absent numbers are not reported."""

    text = serializers.CharField(required=False)
    done_bytes = serializers.IntegerField(required=False, allow_null=True)
    total_bytes = serializers.IntegerField(required=False, allow_null=True)
    bytes_per_second = serializers.IntegerField(required=False, allow_null=True)

    def to_representation(self, instance: Any) -> Any:
        """As stored: the column holds the outer names already."""
        inner = {_SNAKE.sub(lambda found: f"_{found[0].lower()}", name): value for name, value in instance.items()}
        return super().to_representation(inner)


class FailureSerializer(CamelSerializer):
    """Why an operation failed, or the last try did; `lines` are the engine's last words."""

    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    lines = serializers.ListField(child=serializers.CharField(), required=False)


class OperationSerializer(CamelSerializer):
    """A durable operation."""

    id = serializers.CharField()
    kind = serializers.CharField()
    node_id = serializers.CharField(source="node_id_text")
    model_id = serializers.CharField(source="model_id_text")
    actor = serializers.CharField()
    stage = serializers.CharField()
    stage_since = serializers.DateTimeField(allow_null=True)
    progress = ProgressSerializer()
    attempt = serializers.IntegerField()
    outcome = serializers.ChoiceField(choices=OUTCOME.choices)
    error = FailureSerializer()
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    waits_for = serializers.SerializerMethodField("get_waits_for", help_text="What it waits for, in words.")
    can_cancel = serializers.SerializerMethodField("get_can_cancel", help_text="Whether it can be asked to end now.")

    def get_waits_for(self, operation: Operation) -> str:
        """In words."""
        return telling.waits_for(operation, clock.now())

    def get_can_cancel(self, operation: Operation) -> bool:
        """Whether a DELETE is obeyed now."""
        return not telling.why_no_cancel(operation)


class SkippedSerializer(CamelSerializer):
    """A replica that was left out, and why."""

    node_ids = serializers.ListField(child=serializers.CharField())
    code = serializers.CharField()
    detail = serializers.CharField()


class AcceptedSerializer(OperationSerializer):
    """The operation that stands for what was asked of a model, with those of each of its placements."""

    operations = OperationSerializer(many=True)
    skipped = SkippedSerializer(many=True)

    def to_representation(self, instance: Accepted) -> Any:
        """The first operation, and beside it all of them."""
        return {
            **OperationSerializer(instance.operation).data,
            "operations": OperationSerializer(instance.operations, many=True).data,
            "skipped": SkippedSerializer(instance.skipped, many=True).data,
        }


class EventSerializer(CamelSerializer):
    """One line of the timeline."""

    time = serializers.DateTimeField()
    stage = serializers.CharField()
    text = serializers.CharField()


class OperationDetailSerializer(OperationSerializer):
    """An operation with its timeline and its result."""

    result = serializers.DictField()
    events = EventSerializer(many=True)


class LaunchInputSerializer(CamelSerializer):
    """How to start. `force` passes over the node's memory check, and over nothing else."""

    force = serializers.BooleanField(default=False)


class LogSerializer(CamelSerializer):
    """Lines of an engine's log. Send `next` as ``after`` to read on."""

    lines = serializers.ListField(child=serializers.CharField())
    next = serializers.IntegerField()
    truncated = serializers.BooleanField()


class ProcessSerializer(CamelSerializer):
    """A process of the master and the age of its last sign of life; None means that there is none."""

    name = serializers.CharField()
    alive = serializers.BooleanField()
    age_seconds = serializers.FloatField(allow_null=True)


class NodeStateSerializer(CamelSerializer):
    """A node and its shown state."""

    id = serializers.CharField()
    state = serializers.CharField()
    draining = serializers.BooleanField()
    reasons = serializers.ListField(child=serializers.CharField())


class ModelStateSerializer(CamelSerializer):
    """A model, its shown state, and the open operation on it."""

    id = serializers.CharField()
    state = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())
    serves = serializers.BooleanField()
    node_id = serializers.CharField(allow_null=True)
    node_ids = serializers.ListField(child=serializers.CharField())
    operation_id = serializers.CharField(allow_null=True)


class StatusSerializer(CamelSerializer):
    """The whole at a glance."""

    version = serializers.CharField()
    broker_problem = serializers.CharField(allow_null=True)
    processes = ProcessSerializer(many=True)
    nodes = NodeStateSerializer(many=True)
    models = ModelStateSerializer(many=True)
    open_operations = serializers.IntegerField()
