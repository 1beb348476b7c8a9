"""The shape of admin tokens on ``/api``."""

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
    """A token that was just made: the only answer that holds its secret."""

    secret = serializers.CharField()


class TokenInputSerializer(CamelSerializer):
    """What a new token is made of."""

    name = serializers.CharField(max_length=100)
    role = serializers.ChoiceField(choices=ROLES)
    expires_at = serializers.DateTimeField(allow_null=True, required=False)
