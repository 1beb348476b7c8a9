"""People and admin tokens in the Django admin. Owners manage people; everyone with a role may look at tokens."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from audit import log as audit_log
from mirbad.accounts import actors, tokens
from mirbad.accounts.models import AdminToken, LoginCounter
from mirbad.accounts.people import ADMIN
from mirbad.api.read_only_admin import ReadOnlyAdmin
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OWNER, has_role, role_of

admin.site.site_header = "Mirbad"
admin.site.site_title = "Mirbad"
admin.site.index_title = "For support: view data, and a few safe actions"
admin.site.unregister(Group)  # the three groups are the roles; the master creates them
admin.site.unregister(User)


if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:  # the class takes no parameters at run time
    _UserAdmin = UserAdmin


@admin.register(User)
class PeopleAdmin(_UserAdmin):
    """Accounts. A role is a group; `staff` opens these pages. The account ``admin`` is defined by the settings."""

    list_display = ("username", "is_active", "is_staff", "last_login")
    list_filter = ("groups", "is_active", "is_staff")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Rights", {"fields": ("is_active", "is_staff", "groups")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    readonly_fields = ("last_login", "date_joined")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is an owner."""
        return has_role(request.user, OWNER)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person is an owner."""
        return has_role(request.user, OWNER)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person is an owner."""
        return has_role(request.user, OWNER)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person is an owner; ``admin`` is set from MIRBAD_ADMIN_PASSWORD at every start."""
        return has_role(request.user, OWNER) and (obj is None or obj.username != ADMIN)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: an account is deactivated instead, so that its tokens keep their owner."""
        return False

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Record a new person in the audit log, too."""
        _record_person(request, obj, "created")
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Record a change of a person in the audit log, too: names of fields, never a password."""
        _record_person(request, obj, f"changed: {_changed_fields(message)}")
        return super().log_change(request, obj, message)

    def user_change_password(
        self,
        request: HttpRequest,
        id: str,  # noqa: A002  named by Django
        form_url: str = "",
    ) -> HttpResponse:
        """Change a password and record it, or neither."""
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)


def _record_person(request: HttpRequest, person: Any, verb: str) -> None:
    fresh = User.objects.get(pk=person.pk)  # the object may remember the role from before
    active, fresh.is_active = fresh.is_active, True  # the role that an inactive person has again when active
    state = f"{role_of(fresh) or 'no role'}, {'active' if active else 'inactive'}"
    detail = f"{verb}; now {state}{', staff' if fresh.is_staff else ''}"
    audit_log.record("person", actors.of(request), target=fresh.get_username(), detail=detail)


def _changed_fields(message: Any) -> str:
    if not isinstance(message, list):
        return str(message)
    fields = [name for one in message for name in one.get("changed", {}).get("fields", ())]
    return ", ".join(map(str, fields)) or "nothing"


@admin.register(AdminToken)
class AdminTokenAdmin(ReadOnlyAdmin):
    """Admin tokens without their digests."""

    list_display = ("name", "prefix", "role", "owner", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_filter = ("role",)
    list_select_related = ("owner",)
    exclude = ("digest",)
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is an owner."""
        return has_role(request.user, OWNER)

    @admin.action(description="Revoke selected tokens", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[AdminToken]) -> None:
        """Revoke tokens at once."""
        for token in queryset:
            try:
                tokens.revoke(token.pk, actors.of(request))
            except MirbadError as error:
                self.message_user(request, f"{token}: {error.detail}", messages.WARNING)
            else:
                self.message_user(request, f"{token} is revoked.", messages.SUCCESS)


@admin.register(LoginCounter)
class LoginCounterAdmin(ReadOnlyAdmin):
    """Attempts to log in, by address, name and browser."""

    list_display = ("scope", "subject", "attempts", "refused", "until")
    list_filter = ("scope",)
