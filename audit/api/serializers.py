"""The shape of audit lines on ``/api``."""

from rest_framework import serializers

from audit.actions import ACTIONS, RESULTS
from mirbad.api.serializers import CamelSerializer


class AuditLineSerializer(CamelSerializer):
    """One line, as in the JSONL files. `seq` is None and `hash` empty until the line is sealed, seconds later."""

    id = serializers.IntegerField()
    seq = serializers.IntegerField(allow_null=True)
    time = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    node_id = serializers.CharField(allow_null=True)
    model_id = serializers.CharField(allow_null=True)
    operation_id = serializers.CharField(allow_null=True)
    target = serializers.CharField(allow_null=True)
    result = serializers.ChoiceField(choices=RESULTS)
    error_code = serializers.CharField(allow_null=True)
    detail = serializers.CharField(allow_null=True)
    hash = serializers.CharField(allow_blank=True)


class AuditPageSerializer(CamelSerializer):
    """Some lines, and where the older ones are."""

    items = AuditLineSerializer(many=True)
    next = serializers.URLField(allow_null=True)
