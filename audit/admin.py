"""Audit lines in the Django admin: read-only."""

from django.contrib import admin

from audit.models import AuditLine, ChainState
from mirbad.api.looking import LookingAdmin


@admin.register(AuditLine)
class AuditLineAdmin(LookingAdmin):
    """Who did what, with which outcome."""

    list_display = ("time", "actor", "action", "node_id_text", "model_id_text", "target", "result", "error_code")
    list_filter = ("action", "result")
    search_fields = ("actor", "node_id_text", "model_id_text", "operation_id_text", "target", "detail")
    date_hierarchy = "time"


@admin.register(ChainState)
class ChainStateAdmin(LookingAdmin):
    """How far the hash chain has come."""

    list_display = ("head_seq", "head_digest", "base_seq", "written_seq")
