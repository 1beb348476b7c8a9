"""``/api/backups/imports``: the import of a backup in two steps, a preview and its confirmation."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.backup.importing.choices import ImportChoices, ImportOptions, TargetChoice
from jobs.backup.importing.plan import NodeMatch, PlannedAction, RestorePlan
from jobs.errors import RestoreChanged
from jobs.requests import imported_uploads, restore
from jobs.requests.imported_uploads import ImportedUpload
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OWNER

_MOST_TARGETS = 5000
_MATCHES = [match.value for match in NodeMatch]
ACTIONS = [action.value for action in PlannedAction]


class ImportUploadSerializer(CamelSerializer):
    """A backup, and the passphrase of its secrets. Without it, keys and values of secret variables are left out."""

    file = serializers.FileField(allow_empty_file=True)
    passphrase = serializers.CharField(
        max_length=1000, allow_blank=True, default="", trim_whitespace=False, write_only=True
    )


class ImportTargetSerializer(CamelSerializer):
    """A target of one model (`modelId`) or of everything on a node of the backup (`backupNodeId`), or `unplaced`.

    `gpuUuids` are of a model; without them the import chooses as many equal GPUs as the model had.
    """

    model_id = serializers.CharField(max_length=64, allow_blank=True, default="")
    backup_node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    node_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    gpu_uuids = serializers.ListField(child=serializers.CharField(max_length=80), max_length=64, default=list)
    unplaced = serializers.BooleanField(default=False)


class ImportOptionsSerializer(CamelSerializer):
    """The parts of an import; each is on when the backup has something for it."""

    start_models = serializers.BooleanField(default=True)
    node_settings = serializers.BooleanField(default=True)
    start_times = serializers.BooleanField(default=True)
    destinations = serializers.BooleanField(default=True)


class ImportChoicesSerializer(CamelSerializer):
    """The choices of an import. `othersUnplaced` leaves unplaced what needs a target and has none."""

    targets = ImportTargetSerializer(many=True, default=list)
    options = ImportOptionsSerializer(required=False)
    others_unplaced = serializers.BooleanField(default=False)

    def validate_targets(self, value: list[Any]) -> list[Any]:
        """Refuse a list that no backup needs."""
        if len(value) > _MOST_TARGETS:
            raise serializers.ValidationError(f"Send at most {_MOST_TARGETS} targets.")
        return value


class ImportConfirmationSerializer(ImportChoicesSerializer):
    """The choices of a preview, and its `digest`: another plan is refused."""

    digest = serializers.RegexField(r"^[0-9a-f]{64}$")


class PlannedPlaceSerializer(CamelSerializer):
    """A placement that the import makes."""

    node_id = serializers.CharField()
    gpu_uuids = serializers.ListField(child=serializers.CharField())
    shard = serializers.IntegerField()
    shards = serializers.IntegerField()


class PlannedModelSerializer(CamelSerializer):
    """A model of the backup: its fate and the reason, what changes, its placements, and what a person has to know."""

    id = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    reason = serializers.CharField()
    changes = serializers.ListField(child=serializers.CharField())
    notes = serializers.ListField(child=serializers.CharField())
    backup_node_ids = serializers.ListField(child=serializers.CharField())
    places = PlannedPlaceSerializer(many=True)
    placed_on = serializers.ListField(child=serializers.CharField(), help_text="Its nodes here, which it keeps.")
    needs_target = serializers.BooleanField()
    start = serializers.BooleanField()
    missing_secrets = serializers.ListField(child=serializers.CharField())


class PlannedKeySerializer(CamelSerializer):
    """An API key of the backup, with the name that it has or gets here."""

    name = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    reason = serializers.CharField()


class PlannedDestinationSerializer(CamelSerializer):
    """A destination of backups; `reason` is also what a person has to do."""

    name = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    reason = serializers.CharField()


class PlannedSettingSerializer(CamelSerializer):
    """A setting of a node before and after; `gpuUuid` for the reserve of a GPU."""

    name = serializers.CharField()
    gpu_uuid = serializers.CharField()
    before = serializers.JSONField()
    after = serializers.JSONField()


class PlannedNodeSerializer(CamelSerializer):
    """A node of the backup. `nodeId` is that of the same machine here, `unresolved` its models without a target."""

    id = serializers.CharField()
    match = serializers.ChoiceField(choices=_MATCHES)
    node_id = serializers.CharField()
    models = serializers.IntegerField()
    unresolved = serializers.IntegerField()
    settings = PlannedSettingSerializer(many=True)
    notes = serializers.ListField(child=serializers.CharField())


class ImportPlanSerializer(CamelSerializer):
    """The plan of an import. Nothing is written before it is confirmed with its `digest`."""

    digest = serializers.CharField()
    summary = serializers.CharField()
    with_secrets = serializers.BooleanField()
    available = ImportOptionsSerializer()
    options = ImportOptionsSerializer()
    models = PlannedModelSerializer(many=True)
    keys = PlannedKeySerializer(many=True)
    nodes = PlannedNodeSerializer(many=True)
    destinations = PlannedDestinationSerializer(many=True)
    notes = serializers.ListField(child=serializers.CharField())


class BackupImportSerializer(CamelSerializer):
    """An uploaded backup, kept for an hour, and the plan of its import."""

    id = serializers.CharField()
    name = serializers.CharField()
    instance_id = serializers.CharField()
    created_at = serializers.DateTimeField()
    preview = ImportPlanSerializer()


class _ImportView(AcceptingView):
    read_role = OWNER
    required_role = OWNER

    def uploaded(self, upload_id: str) -> ImportedUpload:
        """Return the upload of the caller. Raises NotFound."""
        return imported_uploads.find(upload_id, self.actor)

    def shown(self, upload: ImportedUpload, plan: RestorePlan) -> dict[str, Any]:
        """Return an upload with a plan, as it is sent."""
        manifest = upload.content.manifest
        values = {
            "id": upload.id,
            "name": upload.content.name,
            "instance_id": manifest.instance_id,
            "created_at": manifest.created_at,
            "preview": _document(plan),
        }
        return dict(BackupImportSerializer(values).data)


class BackupImportsView(_ImportView):
    """Uploads of backups to import."""

    parser_classes = (MultiPartParser,)
    audited = {"POST": restore.ACTION}

    @extend_schema(
        operation_id="backups_imports_create",
        request={"multipart/form-data": ImportUploadSerializer},
        responses={201: BackupImportSerializer},
    )
    def post(self, request: Request) -> Response:
        """Upload a backup and preview its import. Nothing is written."""
        data = read(ImportUploadSerializer, request.data)
        file: UploadedFile[Any] = data["file"]
        upload = imported_uploads.keep(file.chunks(), file.name or "", data["passphrase"] or None, self.actor)
        location = reverse("api-backup-import", args=[upload.id], request=request)
        body = self.shown(upload, restore.preview(upload.content, ImportChoices()))
        return Response(body, status=201, headers={"Location": location})


class OneBackupImportView(_ImportView):
    """An uploaded backup and the preview of its import."""

    @extend_schema(operation_id="backups_imports_read", responses=BackupImportSerializer)
    def get(self, request: Request, upload_id: str) -> Response:
        """Return the preview without any choice."""
        upload = self.uploaded(upload_id)
        return Response(self.shown(upload, restore.preview(upload.content, ImportChoices())))

    @extend_schema(operation_id="backups_imports_delete", responses={204: None})
    def delete(self, request: Request, upload_id: str) -> Response:
        """Remove the upload."""
        imported_uploads.forget(upload_id, self.actor)
        return Response(status=204)


class BackupImportPreview(_ImportView):
    """The preview of an import with choices."""

    @extend_schema(
        operation_id="backups_imports_preview",
        request=ImportChoicesSerializer,
        responses={200: BackupImportSerializer},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        """Return the plan by these choices. Nothing is written."""
        choices = _choices(read(ImportChoicesSerializer, request.data))
        upload = self.uploaded(upload_id)
        return Response(self.shown(upload, restore.preview(upload.content, choices)))


class BackupImportConfirmation(_ImportView):
    """The confirmation of an import."""

    audited = {"POST": restore.ACTION}

    @extend_schema(
        operation_id="backups_imports_confirm",
        request=ImportConfirmationSerializer,
        responses={202: OperationSerializer},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        """Import what was previewed. A plan that is another one by now is refused, with the new one in `preview`."""
        require_reauthentication(request)
        data = read(ImportConfirmationSerializer, request.data)
        choices, upload = _choices(data), self.uploaded(upload_id)
        try:
            operation = restore.request(upload.content, choices, data["digest"], self.actor)
        except RestoreChanged as error:
            error.fields["preview"] = ImportPlanSerializer(_document(restore.preview(upload.content, choices))).data
            raise
        imported_uploads.forget(upload_id, self.actor)
        return self.accepted(operation)


def _choices(data: dict[str, Any]) -> ImportChoices:
    targets = tuple(TargetChoice(**{**target, "gpu_uuids": tuple(target["gpu_uuids"])}) for target in data["targets"])
    return ImportChoices(targets, ImportOptions(**data.get("options", {})), data["others_unplaced"])


def _document(plan: RestorePlan) -> dict[str, Any]:
    names = ("digest", "with_secrets", "available", "options", "models", "keys", "nodes", "destinations", "notes")
    return {name: getattr(plan, name) for name in names} | {"summary": plan.summary()}
