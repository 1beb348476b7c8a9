"""Operations in the Django admin: looking, and asking one to end."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs import requests
from jobs.models import Operation, OperationEvent
from mirbad.accounts import actors
from mirbad.api.looking import LookingAdmin
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, has_role


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
