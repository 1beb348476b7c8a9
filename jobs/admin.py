"""Operations in the Django admin: looking, asking one to end, and the ones that begin with a node."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs import identity, requests
from jobs.models import Operation, OperationEvent
from mirbad.accounts import actors
from mirbad.api.looking import LookingAdmin
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, has_role
from nodes import admin as nodes_admin
from nodes.models import Node


@admin.register(Operation)
class OperationAdmin(LookingAdmin):
    """What takes time, and what became of it."""

    list_display = ("id", "kind", "model_id_text", "node_id_text", "stage", "outcome", "actor", "created_at")
    list_filter = ("kind", "outcome")
    search_fields = ("id", "model_id_text", "node_id_text")
    actions = ("cancel",)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Operators."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Cancel the chosen operations", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Ask them to end."""
        for operation in queryset:
            try:
                requests.cancel(operation.pk, actors.of(request))
            except MirbadError as error:
                self.message_user(request, f"{operation.pk}: {error.detail}", messages.WARNING)
            else:
                self.message_user(request, f"{operation.pk} was asked to end.", messages.SUCCESS)


@admin.register(OperationEvent)
class OperationEventAdmin(LookingAdmin):
    """The timelines."""

    list_display = ("time", "operation", "stage", "text")
    list_select_related = ("operation",)


admin.site.unregister(Node)


@admin.register(Node)
class NodeAdmin(nodes_admin.NodeAdmin):
    """Nodes with what is a durable operation: another certificate."""

    actions = (*nodes_admin.NodeAdmin.actions, "rotate")

    @admin.action(description="Rotate the certificates of the chosen nodes", permissions=["operate"])
    def rotate(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """Another key and certificate for each that serves."""
        self._each(request, queryset, identity.rotate, "gets another certificate; its operations say how far it is")
