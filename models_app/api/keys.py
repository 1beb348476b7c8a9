"""``/api/keys``: create, change, rotate and revoke keys of ``/v1``."""

from datetime import timedelta

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.parameters import flag
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app import keys


def _limit() -> serializers.IntegerField:
    return serializers.IntegerField(min_value=1, max_value=keys.LIMIT_HIGHEST, allow_null=True, required=False)


class KeySerializer(CamelSerializer):
    """A key of ``/v1`` without its secret. Empty `allowedModels` means all, a limit of null is none."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    allowed_models = serializers.ListField(child=serializers.CharField())
    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    max_parallel = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    rotated_at = serializers.DateTimeField(allow_null=True)
    previous_until = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class NewKeySerializer(KeySerializer):
    """A key with a new secret. No other response holds it."""

    secret = serializers.CharField()


class KeyChangeSerializer(CamelSerializer):
    """The settings of a key that can be changed; those left out stay."""

    name = serializers.CharField(max_length=100, required=False)
    allowed_models = serializers.ListField(child=serializers.CharField(max_length=64), max_length=1000, required=False)
    expires_at = serializers.DateTimeField(allow_null=True, required=False)
    requests_per_minute = _limit()
    tokens_per_minute = _limit()
    max_parallel = _limit()


class KeyInputSerializer(KeyChangeSerializer):
    """The settings of a new key."""

    name = serializers.CharField(max_length=100)


class RotationSerializer(CamelSerializer):
    """The time for which the old secret stays valid."""

    grace_seconds = serializers.IntegerField(
        min_value=0, max_value=int(keys.GRACE_LONGEST.total_seconds()), required=False, default=0
    )


class KeysView(AdminView):
    """Keys of ``/v1``."""

    pagination_class = Page
    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": "api-key"}

    @extend_schema(
        operation_id="keys_list",
        parameters=[OpenApiParameter("includeRevoked", bool, description="Include revoked keys.")],
        responses=KeySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List all keys, newest first, without their secrets."""
        pages = self.pagination_class()
        found = keys.listed(include_revoked=flag(request, "includeRevoked"))
        rows = pages.paginate_queryset(found, request, view=self)
        return pages.get_paginated_response(printing.rows(KeySerializer, rows or []))

    @extend_schema(operation_id="keys_create", request=KeyInputSerializer, responses={201: NewKeySerializer})
    def post(self, request: Request) -> Response:
        """Create a key. Its secret is in this response only."""
        sent = read(KeyInputSerializer, request.data)
        limits = keys.Limits(**{name: sent.pop(name, None) for name in keys.LIMIT_NAMES})
        key, secret = keys.create(**sent, actor=self.actor, limits=limits)
        return Response({**KeySerializer(key).data, "secret": secret}, status=201)


class KeyView(AdminView):
    """One key of ``/v1``."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"PATCH": "api-key", "DELETE": "api-key"}

    @extend_schema(operation_id="keys_read", responses=KeySerializer)
    def get(self, request: Request, row_id: int) -> Response:
        """Show one key, without its secret."""
        return Response(KeySerializer(keys.get(row_id)).data)

    @extend_schema(operation_id="keys_change", request=KeyChangeSerializer, responses=KeySerializer)
    def patch(self, request: Request, row_id: int) -> Response:
        """Change name, models, expiry or limits; every process applies it within two seconds."""
        changes = read(KeyChangeSerializer, request.data)
        return Response(KeySerializer(keys.update(row_id, self.actor, **changes)).data)

    @extend_schema(operation_id="keys_revoke", responses={204: None})
    def delete(self, request: Request, row_id: int) -> Response:
        """Revoke a key; every process refuses it within two seconds."""
        keys.revoke(row_id, self.actor)
        return Response(status=204)


class KeyRotationView(AdminView):
    """A new secret for a key."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": "api-key"}

    @extend_schema(operation_id="keys_rotate", request=RotationSerializer, responses=NewKeySerializer)
    def post(self, request: Request, row_id: int) -> Response:
        """Give a key a new secret, which is in this response only."""
        sent = read(RotationSerializer, request.data or {})
        key, secret = keys.rotate(row_id, self.actor, grace=timedelta(seconds=sent["grace_seconds"]))
        return Response({**KeySerializer(key).data, "secret": secret})
