"""Models, placements and keys in the Django admin: looking, and revoking keys."""

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from mirbad.accounts import actors
from mirbad.api.looking import LookingAdmin
from mirbad.kernel.roles import OPERATOR, has_role
from models_app import keys
from models_app.models import (
    ApiKey,
    Hold,
    KnownShape,
    MaintenanceWindow,
    ModelDefinition,
    ModelSource,
    Placement,
    RunningIntent,
    StrayInstance,
    UsageDay,
)

if TYPE_CHECKING:
    _Inline = admin.TabularInline[ModelSource, ModelDefinition]
else:  # the class takes no parameters at run time
    _Inline = admin.TabularInline


class SourceInline(_Inline):
    """Where the weights come from."""

    model = ModelSource
    extra = 0
    can_delete = False

    def has_view_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """As for the model."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelDefinition | None = None) -> bool:
        """Nobody."""
        return False


@admin.register(ModelDefinition)
class ModelDefinitionAdmin(LookingAdmin):
    """Definitions without their secret environment."""

    list_display = ("id", "display_name", "runtime", "delivery", "auto_start", "updated_at")
    list_filter = ("runtime", "delivery", "auto_start")
    search_fields = ("id", "display_name")
    exclude = ("secret_env_sealed",)
    inlines = (SourceInline,)


@admin.register(Placement)
class PlacementAdmin(LookingAdmin):
    """Where models stand, as wanted and as seen."""

    list_display = ("model", "node_id_text", "desired", "observed", "generation", "observed_at")
    list_filter = ("desired", "observed")
    list_select_related = ("model",)


@admin.register(Hold)
class HoldAdmin(LookingAdmin):
    """Who keeps a model from being changed."""

    list_display = ("model", "holder_kind", "words", "since")
    list_select_related = ("model",)


@admin.register(ApiKey)
class ApiKeyAdmin(LookingAdmin):
    """Keys of ``/v1`` without their digests."""

    list_display = ("name", "prefix", "created_at", "created_by", "expires_at", "last_used_at", "revoked_at")
    search_fields = ("name", "prefix")
    exclude = ("digest", "previous_digest")
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Operators."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Revoke the chosen keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        """End keys for good."""
        for key in queryset:
            keys.revoke(key.pk, actors.of(request))
            self.message_user(request, f"{key} is revoked.", messages.SUCCESS)


@admin.register(UsageDay)
class UsageDayAdmin(LookingAdmin):
    """What keys asked of models, by day."""

    list_display = ("day", "key_number", "model_id_text", "requests", "failed", "prompt_tokens", "completion_tokens")
    list_filter = ("day",)
    search_fields = ("model_id_text",)


@admin.register(MaintenanceWindow)
class MaintenanceWindowAdmin(LookingAdmin):
    """Open maintenance windows."""

    list_display = ("purpose", "model_id_text", "node_id_text", "holder", "opened_at", "until")


@admin.register(KnownShape)
class KnownShapeAdmin(LookingAdmin):
    """What is known of the shape of weights."""

    list_display = ("subject", "read_at")
    search_fields = ("subject",)


@admin.register(RunningIntent)
class RunningIntentAdmin(LookingAdmin):
    """The running set of each node."""

    list_display = ("placement", "cause", "since", "boot_id")
    list_filter = ("cause",)
    list_select_related = ("placement",)


@admin.register(StrayInstance)
class StrayInstanceAdmin(LookingAdmin):
    """Engines without a place."""

    list_display = ("instance_id", "node_id_text", "model_id_text", "state", "since")
    list_filter = ("state",)
