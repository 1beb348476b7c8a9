"""``/api/backups``: backups that were made, for owners. A backup is made and deleted by an operation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from audit import log as audit_log
from jobs.api.serializers import FailureSerializer, OperationSerializer
from jobs.api.views import AcceptingView
from jobs.backup import storage
from jobs.models import Backup
from jobs.requests import backups
from jobs.states import OUTCOME
from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OWNER

_PIECE_BYTES = 256 * 1024


class BackupSerializer(CamelSerializer):
    """A backup. `outcome` is ``open`` while it is made; ``succeeded`` means read back, and copied if it should be."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    outcome = serializers.ChoiceField(choices=OUTCOME.choices)
    error = FailureSerializer()
    operation_id = serializers.CharField(source="operation_id_text")
    destination_id = serializers.IntegerField(allow_null=True)
    destination = serializers.CharField(source="destination_name", help_text="Empty: on the master alone.")
    with_secrets = serializers.BooleanField()
    scheduled = serializers.BooleanField()
    bytes = serializers.IntegerField(allow_null=True)
    sha256 = serializers.CharField()
    made_at = serializers.DateTimeField(allow_null=True, help_text="The moment that its content is of.")
    copied_at = serializers.DateTimeField(allow_null=True)
    actor = serializers.CharField()
    person = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class BackupDetailSerializer(BackupSerializer):
    """A backup with its manifest, which is empty until the file is written."""

    manifest = serializers.DictField(help_text="As in the file: version, instance, counts, parts with their SHA-256.")
    on_master = serializers.SerializerMethodField("get_on_master", help_text="Whether it can be downloaded.")

    def get_on_master(self, row: Backup) -> bool:
        """Return whether the master has the file."""
        return row.sha256 != "" and storage.file_of(row).is_file()


class BackupInputSerializer(CamelSerializer):
    """A new backup. Without `passphrase` the one that is kept for the destination is used."""

    passphrase = serializers.CharField(max_length=1000, required=False, write_only=True, trim_whitespace=False)
    with_secrets = serializers.BooleanField(default=True)
    destination_id = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=2**62)


class StartedBackupSerializer(OperationSerializer):
    """The operation that makes a backup, with the id of the backup."""

    backup_id = serializers.IntegerField()


class BackupsView(AcceptingView):
    """Backups."""

    pagination_class = Page
    read_role = OWNER
    required_role = OWNER
    audited = {"POST": backups.ACTION}

    @extend_schema(operation_id="backups_list", responses=BackupSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List backups, newest first."""
        pages = self.pagination_class()
        rows = pages.paginate_queryset(Backup.objects.all(), request, view=self)
        return pages.get_paginated_response(printing.rows(BackupSerializer, rows or []))

    @extend_schema(
        operation_id="backups_create", request=BackupInputSerializer, responses={202: StartedBackupSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make a backup, read it back, and copy it to a destination if one is named."""
        require_reauthentication(request)
        data = read(BackupInputSerializer, request.data)
        operation = backups.request(
            self.actor,
            passphrase=data.get("passphrase"),
            with_secrets=data["with_secrets"],
            destination_id=data.get("destination_id"),
        )
        response = self.accepted(operation)
        response.data = {**(response.data or {}), "backupId": operation.input["backupId"]}
        return response


class BackupView(AcceptingView):
    """One backup."""

    read_role = OWNER
    required_role = OWNER
    audited = {"DELETE": backups.DELETE}

    @extend_schema(operation_id="backups_read", responses=BackupDetailSerializer)
    def get(self, request: Request, row_id: int) -> Response:
        """Return a backup with its manifest."""
        return Response(BackupDetailSerializer(backups.require(row_id)).data)

    @extend_schema(operation_id="backups_delete", responses={202: OperationSerializer})
    def delete(self, request: Request, row_id: int) -> Response:
        """Delete a backup and its copy. Repeating the request returns the same operation."""
        return self.accepted(backups.delete(row_id, self.actor))


class BackupRenderer(BaseRenderer):
    """Lets a client accept ``application/zip``; what is rendered instead of the file is an error."""

    media_type = "application/zip"
    format = "zip"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        """Return an error as JSON."""
        rendered: bytes = JSONRenderer().render(data)
        return rendered


class DownloadBackup(AdminView):
    """The file of a backup."""

    read_role = OWNER
    required_role = OWNER
    audited: ClassVar = {"GET": backups.ACTION}
    renderer_classes = [*AdminView.renderer_classes, BackupRenderer]

    @extend_schema(operation_id="backups_download", responses={(200, "application/zip"): OpenApiTypes.BINARY})
    def get(self, request: Request, row_id: int) -> HttpResponseBase:
        """Stream the file of a backup from the master's disk."""
        require_reauthentication(request)
        row = backups.require(row_id)
        path = storage.file_of(row)
        if not row.sha256 or not path.is_file():
            where = f" Its copy is at {row.destination_name}." if row.copied_at is not None else ""
            raise NotFound(f"The master does not have the file {row.name}.{where}")
        audit_log.record(backups.ACTION, self.actor, target=row.name, detail="downloaded")
        response = StreamingHttpResponse(_pieces(path), content_type="application/zip")
        response["Content-Length"] = str(path.stat().st_size)
        response["Content-Disposition"] = f'attachment; filename="{row.name}"'
        response["Cache-Control"] = "no-store"
        return response


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    """Yield a file in pieces. An ordinary iterator would be read to its end before the first byte is sent."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece
    finally:
        await asyncio.to_thread(file.close)
