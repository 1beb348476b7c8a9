"""Models, placements and keys in the Django admin: read-only, except that keys can be revoked."""

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from mirbad.accounts import actors
from mirbad.api.read_only_admin import ReadOnlyAdmin
from mirbad.kernel.roles import OPERATOR, has_role
from models_app import keys
from models_app.models import (
    ApiKey,
    EngineExit,
    Hold,
    KnownShape,
    MaintenanceWindow,
    ModelDefinition,
    ModelSource,
    OrphanInstance,
    Placement,
    RunningIntent,
    UsageDay,
)

if TYPE_CHECKING:
    _Inline = admin.TabularInline[ModelSource, ModelDefinition]
else:  # the class takes no parameters at run time
    _Inline = admin.TabularInline


class SourceInline(_Inline):
    """The sources of a model's weights."""

    model = ModelSource
    extra = 0
    can_delete = False

    def has_view_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """Return the permission of the model."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """Return False: sources are never added here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """Return False: sources are never changed here."""
        return False


@admin.register(ModelDefinition)
class ModelDefinitionAdmin(ReadOnlyAdmin):
    """Definitions without their secret environment."""

    list_display = ("id", "display_name", "runtime", "delivery", "auto_start", "updated_at")
    list_filter = ("runtime", "delivery", "auto_start")
    search_fields = ("id", "display_name")
    exclude = ("secret_env_sealed",)
    inlines = (SourceInline,)


@admin.register(Placement)
class PlacementAdmin(ReadOnlyAdmin):
    """Placements with their desired and observed state."""

    list_display = ("model", "node_id_text", "desired", "observed", "generation", "observed_at")
    list_filter = ("desired", "observed")
    list_select_related = ("model",)


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    """Holds of models."""

    list_display = ("model", "holder_kind", "words", "since")
    list_select_related = ("model",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys of ``/v1`` without their digests."""

    list_display = ("name", "prefix", "created_at", "created_by", "expires_at", "last_used_at", "revoked_at")
    search_fields = ("name", "prefix")
    exclude = ("digest", "previous_digest")
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Revoke the chosen keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        """Revoke keys for good."""
        for key in queryset:
            keys.revoke(key.pk, actors.of(request))
            self.message_user(request, f"{key} is revoked.", messages.SUCCESS)


@admin.register(UsageDay)
class UsageDayAdmin(ReadOnlyAdmin):
    """Usage of models by key and day."""

    list_display = ("day", "key_number", "model_id_text", "requests", "failed", "prompt_tokens", "completion_tokens")
    list_filter = ("day",)
    search_fields = ("model_id_text",)


@admin.register(MaintenanceWindow)
class MaintenanceWindowAdmin(ReadOnlyAdmin):
    """Open maintenance windows."""

    list_display = ("purpose", "model_id_text", "node_id_text", "holder", "opened_at", "until")


@admin.register(KnownShape)
class KnownShapeAdmin(ReadOnlyAdmin):
    """Known shapes of weights."""

    list_display = ("subject", "read_at")
    search_fields = ("subject",)


@admin.register(RunningIntent)
class RunningIntentAdmin(ReadOnlyAdmin):
    """The running set of each node."""

    list_display = ("placement", "cause", "since", "boot_id")
    list_filter = ("cause",)
    list_select_related = ("placement",)


@admin.register(OrphanInstance)
class OrphanInstanceAdmin(ReadOnlyAdmin):
    """Engines without a placement."""

    list_display = ("instance_id", "node_id_text", "model_id_text", "state", "since")
    list_filter = ("state",)


@admin.register(EngineExit)
class EngineExitAdmin(ReadOnlyAdmin):
    """Engines that ended by themselves."""

    list_display = ("at", "model_id_text", "node_id_text", "code", "exit_code", "signal", "was_ready")
    list_filter = ("code",)
    search_fields = ("model_id_text", "node_id_text", "reason")
