"""People and admin tokens in the Django admin. Owners manage people; everyone with a role may look at tokens."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest

from mirbad.accounts import actors, tokens
from mirbad.accounts.models import AdminToken
from mirbad.accounts.people import ADMIN
from mirbad.api.looking import LookingAdmin
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OWNER, has_role

admin.site.site_header = "Mirbad"
admin.site.site_title = "Mirbad"
admin.site.index_title = "For support: looking, and a few safe actions"
admin.site.unregister(Group)  # the three groups are the roles; they are made by the master
admin.site.unregister(User)


if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:  # the class takes no parameters at run time
    _UserAdmin = UserAdmin


@admin.register(User)
class PeopleAdmin(_UserAdmin):
    """Accounts. A role is a group; `staff` opens these pages. The account ``admin`` belongs to the settings."""

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
        """Owners."""
        return has_role(request.user, OWNER)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Owners."""
        return has_role(request.user, OWNER)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Owners."""
        return has_role(request.user, OWNER)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Owners; the account ``admin`` is made from MIRBAD_ADMIN_PASSWORD at every start."""
        return has_role(request.user, OWNER) and (obj is None or obj.username != ADMIN)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: an account that is no longer wanted is made inactive, so that its tokens keep their story."""
        return False


@admin.register(AdminToken)
class AdminTokenAdmin(LookingAdmin):
    """Admin tokens without their digests."""

    list_display = ("name", "prefix", "role", "owner", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_filter = ("role",)
    list_select_related = ("owner",)
    exclude = ("digest",)
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Owners."""
        return has_role(request.user, OWNER)

    @admin.action(description="Revoke the chosen tokens", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[AdminToken]) -> None:
        """End tokens at once."""
        for token in queryset:
            try:
                tokens.revoke(token.pk, actors.of(request))
            except MirbadError as error:
                self.message_user(request, f"{token}: {error.detail}", messages.WARNING)
            else:
                self.message_user(request, f"{token} is revoked.", messages.SUCCESS)
