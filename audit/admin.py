"""Audit lines in the Django admin: read-only."""

from django.contrib import admin

from audit.models import AuditLine, ChainState, Checkpoint, LogKey
from mirbad.api.read_only_admin import ReadOnlyAdmin


@admin.register(AuditLine)
class AuditLineAdmin(ReadOnlyAdmin):
    """Audit lines: actor, action, outcome."""

    list_display = ("time", "actor", "action", "node_id_text", "model_id_text", "target", "result", "error_code")
    list_filter = ("action", "result")
    search_fields = ("actor", "node_id_text", "model_id_text", "operation_id_text", "target", "detail")
    date_hierarchy = "time"


@admin.register(ChainState)
class ChainStateAdmin(ReadOnlyAdmin):
    """The state of the hash chain."""

    list_display = ("head_seq", "head_digest", "base_seq", "written_seq")


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    """Signed heads of the log and who witnessed them."""

    list_display = ("size", "created_at")


@admin.register(LogKey)
class LogKeyAdmin(ReadOnlyAdmin):
    """The key that signs heads of the log, without its private part."""

    list_display = ("public", "created_at")
    exclude = ("key_sealed",)
