"""Admin tokens as JSON on ``/api``."""

from rest_framework import serializers

from mirbad.api.serializers import CamelSerializer
from mirbad.kernel.roles import ROLES


class TokenSerializer(CamelSerializer):
    """An admin token without its secret."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    role = serializers.ChoiceField(choices=ROLES)
    owner = serializers.CharField(source="owner.username", allow_null=True, default=None)
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenSerializer(TokenSerializer):
    """A new token: the only response that holds its secret."""

    secret = serializers.CharField()


class TokenInputSerializer(CamelSerializer):
    """Input of a new token."""

    name = serializers.CharField(max_length=100)
    role = serializers.ChoiceField(choices=ROLES)
    expires_at = serializers.DateTimeField(allow_null=True, required=False)
