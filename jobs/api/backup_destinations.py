"""``/api/backups/destinations``: where backups are copied to, for owners. Secrets are taken and never returned."""

from dataclasses import replace
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.backup.destinations.settings import KINDS
from jobs.models import BackupDestination
from jobs.requests import backup_destinations
from jobs.requests.backup_destinations import DestinationInput
from jobs.requests.backups import require_destination
from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OWNER

KIND_NAMES = tuple(KINDS)
_SETTINGS = (
    "By kind. folder: path. smb: host, share, folder, username, domain. nfs: host, export, folder. "
    "s3: endpoint, region, bucket, prefix, accessKeyId."
)


class DestinationSerializer(CamelSerializer):
    """A destination of backups."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=KIND_NAMES)
    settings = serializers.DictField(child=serializers.CharField(allow_blank=True), help_text=_SETTINGS)
    has_secret = serializers.SerializerMethodField("get_has_secret", help_text="A password or secret key is stored.")
    keeps_passphrase = serializers.SerializerMethodField(
        "get_keeps_passphrase", help_text="Scheduled backups have secrets, sealed by a stored passphrase."
    )
    schedule = serializers.CharField(help_text="Cron expression in UTC; empty: off.")
    keep_count = serializers.IntegerField(allow_null=True)
    keep_days = serializers.IntegerField(allow_null=True)
    warn_after_hours = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()

    def get_has_secret(self, row: BackupDestination) -> bool:
        """Return whether there is a password or secret key."""
        return row.secret_sealed is not None

    def get_keeps_passphrase(self, row: BackupDestination) -> bool:
        """Return whether there is a passphrase for scheduled backups."""
        return row.passphrase_sealed is not None


class DestinationInputSerializer(CamelSerializer):
    """A destination. An empty `secret` or `passphrase` removes the stored one; an absent one keeps it."""

    name = serializers.CharField(max_length=60)
    kind = serializers.ChoiceField(choices=KIND_NAMES)
    settings = serializers.DictField(child=serializers.CharField(allow_blank=True, max_length=500), help_text=_SETTINGS)
    secret = serializers.CharField(
        max_length=500, allow_blank=True, required=False, write_only=True, trim_whitespace=False
    )
    passphrase = serializers.CharField(
        max_length=1000, allow_blank=True, required=False, write_only=True, trim_whitespace=False
    )
    schedule = serializers.CharField(max_length=100, allow_blank=True, default="")
    keep_count = serializers.IntegerField(min_value=1, max_value=10_000, allow_null=True, default=None)
    keep_days = serializers.IntegerField(min_value=1, max_value=10_000, allow_null=True, default=None)
    warn_after_hours = serializers.IntegerField(min_value=1, max_value=10_000, allow_null=True, default=None)


class DestinationsView(AdminView):
    """Destinations."""

    pagination_class = Page
    read_role = OWNER
    required_role = OWNER
    audited = {"POST": backup_destinations.ACTION}

    @extend_schema(operation_id="backup_destinations_list", responses=DestinationSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List destinations by name."""
        pages = self.pagination_class()
        rows = pages.paginate_queryset(BackupDestination.objects.all(), request, view=self)
        return pages.get_paginated_response(printing.rows(DestinationSerializer, rows or []))

    @extend_schema(
        operation_id="backup_destinations_create",
        request=DestinationInputSerializer,
        responses={201: DestinationSerializer},
    )
    def post(self, request: Request) -> Response:
        """Create a destination."""
        require_reauthentication(request)
        entered = DestinationInput(**read(DestinationInputSerializer, request.data))
        return Response(DestinationSerializer(backup_destinations.create(entered, self.actor)).data, status=201)


class DestinationView(AdminView):
    """One destination."""

    read_role = OWNER
    required_role = OWNER
    audited = {"PATCH": backup_destinations.ACTION, "DELETE": backup_destinations.ACTION}

    @extend_schema(operation_id="backup_destinations_read", responses=DestinationSerializer)
    def get(self, request: Request, row_id: int) -> Response:
        """Return a destination."""
        return Response(DestinationSerializer(require_destination(row_id)).data)

    @extend_schema(
        operation_id="backup_destinations_update", request=DestinationInputSerializer, responses=DestinationSerializer
    )
    def patch(self, request: Request, row_id: int) -> Response:
        """Change the given members. `settings` is given whole."""
        require_reauthentication(request)
        changes: dict[str, Any] = read(DestinationInputSerializer, request.data, partial=True)
        entered = replace(present(require_destination(row_id)), **changes)
        return Response(DestinationSerializer(backup_destinations.update(row_id, entered, self.actor)).data)

    @extend_schema(operation_id="backup_destinations_delete", responses={204: None})
    def delete(self, request: Request, row_id: int) -> Response:
        """Forget a destination. The files there stay."""
        require_reauthentication(request)
        backup_destinations.delete(row_id, self.actor)
        return Response(status=204)


class TryDestination(AdminView):
    """A trial of a destination."""

    required_role = OWNER
    audited = {"POST": backup_destinations.ACTION}

    @extend_schema(operation_id="backup_destinations_try", request=None, responses={204: None})
    def post(self, request: Request, row_id: int) -> Response:
        """Write, read and delete a small file there. Takes up to a minute."""
        backup_destinations.try_out(row_id, self.actor)
        return Response(status=204)


def present(row: BackupDestination) -> DestinationInput:
    """Return a destination as it would be entered, without its secrets, which stay."""
    names = ("name", "kind", "schedule", "keep_count", "keep_days", "warn_after_hours")
    given = {name: value for name, value in row.settings.items() if name != "kind"}
    return DestinationInput(settings=given, **{name: getattr(row, name) for name in names})
