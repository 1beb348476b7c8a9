"""Audit lines as JSON on ``/api``."""

from rest_framework import serializers

from audit.actions import ACTIONS, RESULTS
from mirbad.api.serializers import CamelSerializer


class AuditLineSerializer(CamelSerializer):
    """One line, as in the JSONL files. `seq` is null and `hash` empty until the line is sealed, seconds later."""

    id = serializers.IntegerField()
    seq = serializers.IntegerField(allow_null=True)
    time = serializers.DateTimeField()
    actor = serializers.CharField()
    person = serializers.CharField(required=False)
    role = serializers.CharField(required=False)
    address = serializers.CharField(required=False)
    action = serializers.ChoiceField(choices=ACTIONS)
    node_id = serializers.CharField(allow_null=True)
    model_id = serializers.CharField(allow_null=True)
    operation_id = serializers.CharField(allow_null=True)
    target = serializers.CharField(allow_null=True)
    result = serializers.ChoiceField(choices=RESULTS)
    error_code = serializers.CharField(allow_null=True)
    detail = serializers.CharField(allow_null=True)
    hash = serializers.CharField(allow_blank=True)


class AuditCheckpointSerializer(CamelSerializer):
    """A signed head of the log with the signatures of nodes over it, in the form that ``verify_audit.py`` reads."""

    head = serializers.DictField()
    witnesses = serializers.DictField()
    base = serializers.DictField()


class AuditProofSerializer(AuditCheckpointSerializer):
    """One line, and the hashes that show it to be under the head (RFC 9162)."""

    line = serializers.DictField()
    proof = serializers.ListField(child=serializers.CharField())


class AuditPageSerializer(CamelSerializer):
    """A page of lines, and the address of the older ones."""

    items = AuditLineSerializer(many=True)
    next = serializers.URLField(allow_null=True)
