"""Serializers of operations, logs and the status on ``/api``."""

import re
from typing import Any

from rest_framework import serializers

from jobs import status_text
from jobs.models import Operation
from jobs.requests.model_runs import Accepted
from jobs.states import OUTCOME
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel import clock

_SNAKE = re.compile(r"[A-Z]")


class ProgressSerializer(CamelSerializer):
    """Progress of a stage; absent numbers are not reported."""

    text = serializers.CharField(required=False)
    done_bytes = serializers.IntegerField(required=False, allow_null=True)
    total_bytes = serializers.IntegerField(required=False, allow_null=True)
    bytes_per_second = serializers.IntegerField(required=False, allow_null=True)

    def to_representation(self, instance: Any) -> Any:
        """Return the progress; the column already has the outer names."""
        inner = {_SNAKE.sub(lambda found: f"_{found[0].lower()}", name): value for name, value in instance.items()}
        return super().to_representation(inner)


class FailureSerializer(CamelSerializer):
    """The failure of an operation, or of its last attempt; `lines` are the engine's last lines."""

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
    person = serializers.CharField(help_text="Name of the user or of the token; empty for the master itself.")
    role = serializers.CharField()
    stage = serializers.CharField()
    stage_since = serializers.DateTimeField(allow_null=True)
    progress = ProgressSerializer()
    attempt = serializers.IntegerField()
    outcome = serializers.ChoiceField(choices=OUTCOME.choices)
    error = FailureSerializer()
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    waits_for = serializers.SerializerMethodField("get_waits_for", help_text="The reason for the wait, as a sentence.")
    can_cancel = serializers.SerializerMethodField("get_can_cancel", help_text="True while it can be cancelled.")

    def get_waits_for(self, operation: Operation) -> str:
        """Return the status text."""
        return status_text.waits_for(operation, clock.now())

    def get_can_cancel(self, operation: Operation) -> bool:
        """Return whether a DELETE is accepted now."""
        return not status_text.why_no_cancel(operation)


class SkippedSerializer(CamelSerializer):
    """A replica that was skipped, and the reason."""

    node_ids = serializers.ListField(child=serializers.CharField())
    code = serializers.CharField()
    detail = serializers.CharField()


class AcceptedSerializer(OperationSerializer):
    """The operation that represents the request, with those of each placement."""

    operations = OperationSerializer(many=True)
    skipped = SkippedSerializer(many=True)

    def to_representation(self, instance: Accepted) -> Any:
        """Return the first operation, and beside it all of them."""
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
    """Options of a start.

    A start that does not fit, or that serves slowly on a CPU, is refused with `confirmation_required` and its figures
    unless `confirm` is true. `force` asks nothing and skips the node's memory check only.
    """

    force = serializers.BooleanField(default=False)
    confirm = serializers.BooleanField(default=False)


class LogSerializer(CamelSerializer):
    """Lines of an engine's log. Send `next` as ``after`` to read on."""

    lines = serializers.ListField(child=serializers.CharField())
    next = serializers.IntegerField()
    truncated = serializers.BooleanField()


class ProcessSerializer(CamelSerializer):
    """A process of the master and the age of its last heartbeat; null without one."""

    name = serializers.CharField()
    alive = serializers.BooleanField()
    age_seconds = serializers.FloatField(allow_null=True)


class NodeStateSerializer(CamelSerializer):
    """A node and its state."""

    id = serializers.CharField()
    state = serializers.CharField()
    draining = serializers.BooleanField()
    reasons = serializers.ListField(child=serializers.CharField())
    reason_codes = serializers.ListField(child=serializers.CharField())


class ModelStateSerializer(CamelSerializer):
    """A model, its state, and its open operation."""

    id = serializers.CharField()
    state = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())
    serves = serializers.BooleanField()
    node_id = serializers.CharField(allow_null=True)
    node_ids = serializers.ListField(child=serializers.CharField())
    operation_id = serializers.CharField(allow_null=True)


class StatusSerializer(CamelSerializer):
    """The status of the installation."""

    version = serializers.CharField()
    broker_problem = serializers.CharField(allow_null=True)
    processes = ProcessSerializer(many=True)
    nodes = NodeStateSerializer(many=True)
    models = ModelStateSerializer(many=True)
    open_operations = serializers.IntegerField()
    last_backup_at = serializers.DateTimeField(allow_null=True, help_text="Moment of the newest good backup.")
    warnings = serializers.ListField(child=serializers.CharField(), help_text="What needs an owner, as sentences.")
