"""Operations in the Django admin: read, cancel, and those that begin with a node."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.models import Backup, BackupDestination, Operation, OperationEvent
from jobs.requests import cancellation, identity
from mirbad.accounts import actors
from mirbad.api.read_only_admin import ReadOnlyAdmin
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, OWNER, has_role
from nodes import admin as nodes_admin
from nodes.models import Node


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    """Operations, read-only except for their cancellation."""

    list_display = ("id", "kind", "model_id_text", "node_id_text", "stage", "outcome", "actor", "created_at")
    list_filter = ("kind", "outcome")
    search_fields = ("id", "model_id_text", "node_id_text")
    actions = ("cancel",)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is an operator."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Cancel the chosen operations", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Cancel each chosen operation."""
        for operation in queryset:
            try:
                cancellation.request(operation.pk, actors.of(request))
            except MirbadError as error:
                self.message_user(request, f"{operation.pk}: {error.detail}", messages.WARNING)
            else:
                self.message_user(request, f"Cancelling {operation.pk}.", messages.SUCCESS)


@admin.register(OperationEvent)
class OperationEventAdmin(ReadOnlyAdmin):
    """Timelines of operations, read-only."""

    list_display = ("time", "operation", "stage", "text")
    list_select_related = ("operation",)


class _OwnersAdmin(ReadOnlyAdmin):
    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person is an owner."""
        return has_role(request.user, OWNER)


@admin.register(Backup)
class BackupAdmin(_OwnersAdmin):
    """Backups, read-only."""

    list_display = ("name", "outcome", "destination_name", "with_secrets", "bytes", "made_at", "actor")
    list_filter = ("outcome",)
    exclude = ("passphrase_sealed",)


@admin.register(BackupDestination)
class BackupDestinationAdmin(_OwnersAdmin):
    """Destinations of backups, read-only."""

    list_display = ("name", "kind", "schedule", "keep_count", "keep_days")
    exclude = ("secret_sealed", "passphrase_sealed")


admin.site.unregister(Node)


@admin.register(Node)
class NodeOperationsAdmin(nodes_admin.NodeAdmin):
    """Nodes, with the actions that are durable operations."""

    actions = (*nodes_admin.NodeAdmin.actions, "rotate")

    @admin.action(description="Rotate the certificates of the chosen nodes", permissions=["operate"])
    def rotate(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """Rotate the certificate of each chosen node."""
        self._each(request, queryset, identity.rotate, "gets a new certificate; see its operations for the progress")
